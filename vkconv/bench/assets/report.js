"use strict";
// Sorting by a column's button, filtering by words, and "#sort=COLUMN" or "#sort=-COLUMN" in the address.
const table = document.querySelector("table");
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

const input = document.querySelector(".filter input");
const count = document.querySelector(".filter output");
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

function followAddress() {
  const [, sign, name] = /^#sort=(-?)(.*)$/.exec(decodeURIComponent(location.hash)) ?? [];
  const column = heads.findIndex((head) => head.textContent === name);
  if (column >= 0) sortBy(column, sign === "-");
}
addEventListener("hashchange", followAddress);
followAddress();
