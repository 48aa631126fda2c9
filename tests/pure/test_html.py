"""The HTML report: what it says and escapes, and what it does in a real browser."""

import math
import re
from html.parser import HTMLParser

import pytest
from browser import CHROMIUM, browser
from pages import HOSTILE, ROUTES, header, measured, result
from required import unavailable

from vkconv.bench.charts import bars, roofline, route_colours
from vkconv.bench.files import write_result
from vkconv.bench.html import KEY_COLUMNS, SPEED_COLUMNS, html
from vkconv.bench.rows import Result, result_table
from vkconv.check.report import write_page
from vkconv.table import Column, Table, format_cell

pytestmark = pytest.mark.long

VOID = {"meta", "input", "wbr"}


class Elements(HTMLParser):
    """Checks that tags are balanced; collects tags, attributes and the text of cells."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.rows = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def test_columns_with_a_meaning_exist():
    assert {*KEY_COLUMNS, *SPEED_COLUMNS} <= {column.name for column in result_table(result()).columns}


def test_the_table_has_the_columns_and_cells_of_every_other_form():
    data = result()
    table = result_table(data)
    page = Elements(html(data))
    assert page.rows[0] == [column.heading for column in table.columns]
    assert len(page.rows) == 1 + len(data.rows)
    for texts, cells in zip(page.rows[1:], table.cells, strict=True):
        assert texts == [format_cell(v, c.digits) for v, c in zip(cells, table.columns, strict=True)]
    ids = [attrs["id"] for tag, attrs in page.seen if tag == "tr" and "id" in attrs]
    assert ids == [f"r{i}" for i in range(len(data.rows))]
    targets = {attrs["href"] for tag, attrs in page.seen if tag == "a"}
    assert targets == {f"#{name}" for name in ids}  # every row has a bar, and no link leads elsewhere


def test_the_page_is_small_and_asks_for_nothing():
    data = result(calls=50)
    page = html(data)
    assert len(data.rows) >= 200 and len(page.encode()) < 300_000
    for tag, attrs in Elements(page).seen:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert not {"src", "srcset", "style"} & set(attrs)
        assert not any(name.startswith("on") for name in attrs)
    assert "url(" not in page and "@import" not in page and "http" not in page.replace("http-equiv", "")


def test_whatever_a_row_says_is_text():
    bad = measured(f"relu:x={HOSTILE}", HOSTILE, 10.0, 100, 100, notes=[HOSTILE], why=HOSTILE, params={HOSTILE: 1})
    data = Result(
        header=header(device=HOSTILE, driver=HOSTILE, calls=HOSTILE, quirks=[HOSTILE], forced={HOSTILE: HOSTILE}),
        rows=[bad, measured(f"relu:x={HOSTILE}", "other", 20.0, 100, 100)],
    )
    tags = [tag for tag, _ in Elements(html(data)).seen]
    assert tags.count("script") == 1 and "img" not in tags


def test_a_wrong_row_never_looks_good():
    data = result()
    wrong = next(i for i, row in enumerate(data.rows) if row.check == "FAILED")
    page = html(data)
    assert f'<tr id="r{wrong}" class="failed">' in page and "1 of 49 rows FAILED" in page
    assert f'href="#r{wrong}"' not in roofline(data.rows, data.header.floors)
    line = re.search(rf'<div class="bar failed"><a href="#r{wrong}">.*?</div>', bars(data.rows))[0]
    assert "<rect" not in line and "FAILED" in line and "9000000000" not in line
    refused = re.search(r'<div class="bar"><a href="#r2">.*?</div>', bars(data.rows))[0]
    assert "<rect" not in refused and "needs stride 1" in refused


def test_points_lie_where_the_axes_say():
    """Three points of known intensity and rate give the scales, and so where the ridge of the roofs must be."""
    floors = result().header.floors
    rows = [measured(f"relu:x={i}", "a", 10.0, flops, 1000) for i, flops in enumerate((100, 10_000, 1_000_000))]
    svg = roofline(rows, floors)
    points = [tuple(map(float, p)) for p in re.findall(r'"point[^>]* cx="([\d.]+)" cy="([\d.]+)"', svg)]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2) and y1 - y0 == pytest.approx(y2 - y1, abs=0.2)
    assert x0 < x1 < x2 and y0 > y1 > y2
    decade_x, decade_y = (x1 - x0) / 2, (y0 - y1) / 2
    corners = [tuple(map(float, p.split(","))) for p in re.search(r'points="([^"]*)"', svg)[1].split()]
    ridge_x = x0 + decade_x * math.log10(floors.fma_gflops / floors.copy_gbps / 0.1)
    roof_y = y0 - decade_y * math.log10(floors.fma_gflops / rows[0].gflops)
    assert corners[1] == pytest.approx((ridge_x, roof_y), abs=0.5)
    assert (corners[0][1] - corners[1][1]) / decade_y == pytest.approx((corners[1][0] - corners[0][0]) / decade_x, 0.01)


def test_bars_are_as_long_as_times():
    rows = [measured("relu:x=3", route, us, 10, 10, us_p90=None) for route, us in (("a", 10.0), ("b", 40.0))]
    widths = [float(w) for w in re.findall(r'<rect width="([\d.]+)%"', bars(rows))]
    assert widths == [25.0, 100.0]
    single = bars([*rows, measured("relu:x=5", "a", 3.0, 10, 10)])
    assert single.count("<h3>") == 2 and "calls with one row" in single


def test_results_with_little_in_them():
    empty = html(Result(header=header(floors=None, incomplete=True), rows=[]))
    assert "Incomplete" in empty and "nothing measured" in empty and "<svg" not in empty
    Elements(empty)
    no_flops = Result(header=header(), rows=[measured("transpose:x=3x4,perm=1x0", "copy", 5.0, 0, 96)])
    page = html(no_flops)
    assert "Roofline</h2>" not in page and "<rect" in page
    no_floors = Result(header=header(floors=None), rows=result().rows)
    assert "floors were not measured" in html(no_floors) and 'class="roof"' not in html(no_floors)


def test_many_routes_share_a_colour():
    rows = [measured("relu:x=3", f"route{i}", 10.0 + i, 100, 100) for i in range(12)]
    assert sorted(route_colours(rows).values()) == [*range(8), 8, 8, 8, 8]
    assert "4 more" in roofline(rows, None)


# ---- in a browser


@pytest.fixture(scope="module")
def page():
    if CHROMIUM is None:
        unavailable("no chromium here: apt-get install chromium")
    with browser() as opened:
        yield opened


@pytest.fixture
def report(page, tmp_path):
    """A page with a report open, its result and file; it must ask for nothing and complain of nothing."""
    data = result()
    path = tmp_path / "r.html"
    write_result(data, [path])
    page.errors.clear()
    page.requests.clear()
    page.open(path)
    yield page, data, path
    assert page.errors == []
    assert {r.partition("#")[0] for r in page.requests} <= {path.as_uri(), "about:blank"}


def column(page, name):
    """The texts of a column, top to bottom."""
    return page.ask(
        "(() => { const heads = [...document.querySelectorAll('th')].map(h => h.textContent);"
        f"const i = heads.indexOf('{name}');"
        "return [...document.querySelectorAll('tbody tr')].map(r => r.cells[i].textContent); })()"
    )


def head(name):
    names = [c.heading for c in result_table(result()).columns]
    return f"th:nth-child({names.index(name) + 1}) button"


def numbers(texts):
    return [float(text) for text in texts if text]


def test_it_shows_every_row_and_runs_nothing_of_them(report):
    page, data, _ = report
    assert page.ask("document.querySelectorAll('tbody tr').length") == len(data.rows) == 49
    assert page.ask("document.querySelectorAll('.point').length") == 47
    assert page.ask("typeof window.pwned") == "undefined"
    assert HOSTILE in page.ask("document.querySelector('tbody').textContent")
    assert page.ask("document.querySelectorAll('main img, main script').length") == 0


def test_a_click_sorts_and_another_turns_it_around(report):
    page, data, _ = report
    assert column(page, "call") == [row.call for row in data.rows]
    page.click(head("us"))
    rising = column(page, "us")
    assert page.ask("document.querySelector('th[aria-sort]').ariaSort") == "ascending"
    assert rising[-2:] == ["0.01000", ""]  # the wrong row and the refused one: no times to be sorted by
    values = numbers(rising[:-2])
    assert len(set(values)) > 40 and values == sorted(values)
    page.click(head("us"))
    falling = column(page, "us")
    assert numbers(falling[:-2]) == values[::-1] and falling[-2:] == rising[-2:]
    page.click(head("route"))
    assert column(page, "route") == sorted(column(page, "route"))
    assert page.ask("document.querySelectorAll('th[aria-sort]').length") == 1


def test_the_keyboard_sorts(report):
    page, _, _ = report
    page.ask(f"document.querySelector({head('GFLOP/s')!r}).focus()")
    page.press("Enter", 13, "\r")
    values = numbers(column(page, "GFLOP/s")[:-2])
    assert values == sorted(values)
    page.press("Tab", 9)
    assert page.ask("document.activeElement.textContent") == "GB/s"
    page.press(" ", 32, " ")
    values = numbers(column(page, "GB/s")[:-2])
    assert values == sorted(values)


def test_an_address_can_say_how_to_sort(report):
    page, _, path = report
    page.open(path, "#sort=-us%20p90")
    values = numbers(column(page, "us p90"))
    assert values == sorted(values, reverse=True)


def test_the_filter_keeps_rows_with_all_words(report):
    page, _, _ = report
    page.click(".filter input")
    for letter in "winograd 3x3":
        page.press(letter, ord(letter.upper()), letter)
    shown = page.ask("[...document.querySelectorAll('tbody tr')].filter(r => !r.hidden).map(r => r.textContent)")
    assert 0 < len(shown) < 13 and all("winograd" in text and "3x3" in text for text in shown)
    assert page.ask("document.querySelector('output').value") == f"{len(shown)} of 49 rows"


def test_a_point_leads_to_its_row(report):
    page, data, _ = report
    best = next(i for i, row in enumerate(data.rows) if row.best)
    tip = page.ask(f"document.querySelector('a[href=\"#r{best}\"] title').textContent")
    assert data.rows[best].call in tip and "(best)" in tip
    page.click(f'a[href="#r{best}"]')
    assert page.ask("document.querySelector('tr:target').id") == f"r{best}"


def test_best_is_bold_and_wrong_is_red(report):
    page, data, _ = report
    style = "getComputedStyle(document.querySelector('{}')).{}"
    assert int(page.ask(style.format("tr.best td.k", "fontWeight"))) >= 600
    assert int(page.ask(style.format("tr:not([class]) td.k", "fontWeight"))) < 500
    red, green, blue = map(int, re.findall(r"\d+", page.ask(style.format("tr.failed td", "color")))[:3])
    assert red > 150 and green < 80 and blue < 80
    assert sum(row.best for row in data.rows) == 12


def contrast(page):
    """Luminance of the text and of the page behind it, 0 to 255."""
    colours = page.ask("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
    return [sum(map(int, re.findall(r"\d+", colour)[:3])) / 3 for colour in colours]


def test_light_dark_and_paper(report):
    page, _, _ = report
    text, ground = contrast(page)
    assert ground > 230 and text < 60
    page.dark(True)
    text, ground = contrast(page)
    assert ground < 50 and text > 200
    paper = page.pdf()
    assert 2 <= len(re.findall(rb"/Type */Page\b", paper)) <= 6  # 49 rows, and bars of 13 calls
    page.dark(False)


def test_nothing_hangs_over_the_edge(report, tmp_path):
    page, _, _ = report
    for width in (1600, 900, 390):
        page.screenshot(tmp_path / "s.png", width, 800)
        assert page.ask("document.documentElement.scrollWidth") <= width
    assert set(ROUTES) <= set(column(page, "route"))


def test_each_table_of_a_check_is_sorted_and_filtered_alone(page, tmp_path):
    columns = [Column("node"), Column("errors")]
    first = Table("", columns, [("a", 3), ("b", 1), (HOSTILE, 2)], ["", "", "failed"])
    second = Table("", columns, [("c", 5), ("d", 4)])
    write_page(tmp_path / "c.html", "check", [], [("Nodes", first), ("Runs", second)], {})
    page.errors.clear()
    page.open(tmp_path / "c.html")
    texts = "[...document.querySelectorAll('#{} tbody tr:not([hidden])')].map(r => r.cells[1].textContent)"
    assert page.ask(texts.format("nodes")) == [HOSTILE, "a", "b"]  # what is wrong first
    page.click("#nodes th:nth-child(3) button")
    assert page.ask(texts.format("nodes")) == ["b", HOSTILE, "a"]
    page.click("#runs .filter input")
    page.press("d", 68, "d")
    assert page.ask(texts.format("runs")) == ["d"] and len(page.ask(texts.format("nodes"))) == 3
    assert page.ask("typeof window.pwned") == "undefined" and page.errors == []
