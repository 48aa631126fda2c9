"use strict";
// Each table is sorted by a column's button and filtered by words; "#sort=COLUMN" or "#sort=-COLUMN" in the address
// sorts the first table that has the column.
function follow(sheet) {
  const table = sheet.querySelector("table");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];

  function sortBy(column, descending) {
    const numeric = heads[column].classList.contains("n");
    const speed = heads[column].classList.contains("s");
    const keyed = rows.map((row) => {
      const text = speed && row.classList.contains("failed") ? "" : row.cells[column].textContent; // wrong is never fast
      return [row, numeric ? parseFloat(text) : text];
    });
    const missing = (key) => key === "" || Number.isNaN(key);
    const compare = numeric ? (a, b) => a - b : new Intl.Collator("en", { numeric: true }).compare;
    keyed.sort(([, a], [, b]) => {
      if (missing(a) || missing(b)) return missing(a) - missing(b); // nothing to compare: always last
      return descending ? compare(b, a) : compare(a, b);
    });
    body.append(...keyed.map(([row]) => row));
    heads.forEach((head, i) => {
      if (i === column) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  heads.forEach((head, column) => {
    head.firstElementChild.addEventListener("click", () =>
      sortBy(column, head.getAttribute("aria-sort") === "ascending"),
    );
  });

  const input = sheet.querySelector(".filter input");
  const count = sheet.querySelector(".filter output");
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    count.textContent = words.length ? `${shown} of ${rows.length} rows` : "";
  });
  return { heads, sortBy };
}

const sheets = [...document.querySelectorAll(".sheet")].map(follow);

function followAddress() {
  const [, sign, name] = /^#sort=(-?)(.*)$/.exec(decodeURIComponent(location.hash)) ?? [];
  for (const { heads, sortBy } of sheets) {
    const column = heads.findIndex((head) => head.textContent === name);
    if (column >= 0) return sortBy(column, sign === "-");
  }
}
addEventListener("hashchange", followAddress);
followAddress();
