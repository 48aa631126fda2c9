"""What the table of a checked model says of where errors are, and the page of a check."""

import re
from types import SimpleNamespace

import pytest

from vkconv.cases import Case
from vkconv.check import Checked
from vkconv.check.page import _charts
from vkconv.check.report import model_table, write_page
from vkconv.table import Column, Table

RIGHT = Checked(1e-7, 1e-7, 1e-6, output="y", worst=(0, 1))
WRONG = Checked(1.0, 1.0, 1e-6, "y[2, 3] is wrong", "y", worst=(2, 3), pattern="all of row 2")
FAR = Checked(1e-3, 1e-3, 1e-6, "y[4, 5] is far", "y", worst=(4, 5), pattern="9 of 20 elements")


def where(alone, run, accumulated, refused=""):
    node = SimpleNamespace(
        node="n", call=SimpleNamespace(op="relu"), route="r", params={}, alone=alone, run=run, accumulated=accumulated
    )
    node.refused = refused
    node.cause = "" if alone.ok and run.ok else "alone"
    return model_table(SimpleNamespace(nodes=[node])).rows[0]["where"]


def test_only_what_is_wrong_has_a_pattern():
    assert where(RIGHT, RIGHT, FAR) == "y[4, 5]"
    assert where(RIGHT, WRONG, FAR) == "y[2, 3]: all of row 2"
    assert where(WRONG, RIGHT, FAR) == "y[2, 3]: all of row 2"
    assert where(RIGHT, RIGHT, FAR, "over a limit") == "over a limit"


# ---- the page

HOSTILE = '<script>window.pwned = 1</script><img src=x onerror="x">'
CASES = [
    Case("m", "a", "ok", max_rel=1e-7, allowed=1e-6),
    Case("m", "b", "FAILED", HOSTILE, max_rel=1e-3, allowed=1e-6),
    Case("m", "c", "FAILED", "NaN", max_rel=None, allowed=1e-6),
    Case("m", "exact", "ok", max_rel=0.0, allowed=1e-6),
    Case("m", "refused", "skipped"),
]


def page(tmp_path, names=("first", HOSTILE, "third"), **more):
    cells = [(name, place) for place, name in enumerate(names)]
    table = Table("", [Column("node"), Column("errors")], cells, ["", "failed", ""])
    path = tmp_path / "r.html"
    lines, data = [f"model {HOSTILE}"], {"schema": "vkconv.check/1"}
    write_page(path, "vkconv check", lines, [("Nodes", table)], data, CASES, ["FAILED: b"], True, ["vkconv x"], **more)
    return path.read_text()


def test_what_is_wrong_comes_first_and_links_to_its_dump(tmp_path):
    text = page(tmp_path, links={HOSTILE: tmp_path / "dumps" / "001 b"})
    assert re.findall(r'<tr id="(\w+)"', text) == ["t0r1", "t0r0", "t0r2"]
    assert '<tr id="t0r1" class="failed"><td class="n">2</td><td><a href="dumps/001%20b">' in text
    assert '<p class="notice bad">FAILED: b</p>' in text and "<pre>vkconv x</pre>" in text
    assert text.count("<script") == 1 and "<img" not in text and "vkconv.check/1</footer>" in text


def test_errors_lie_above_the_line_where_they_are_too_large(tmp_path):
    text = page(tmp_path)
    limit = float(re.search(r'class="roof".*? y1="([\d.]+)"', text)[1])
    marks = re.findall(r'class="point (\w+)" cx="([\d.]+)" cy="([\d.]+)"', text)
    assert [name for name, _, _ in marks] == ["right", "wrong", "wrong", "right"]
    heights = [float(y) for _, _, y in marks]
    assert heights[2] < heights[1] < limit < heights[0] < heights[3]
    assert heights[1] - heights[0] == pytest.approx(4 * (limit - heights[0]), abs=0.5)  # four decades, and one
    assert "1000 of the allowed error" in text and "its error is no number" in text


def test_many_checks_are_told_by_the_worst_of_each_group():
    cases = [Case(f"op{i % 7}", f"{i}", "ok", max_rel=i * 1e-9, allowed=1e-6) for i in range(900)]
    cases[500] = Case("op3", "wrong", "FAILED", "far", max_rel=1.0, allowed=1e-6)
    (section,) = _charts(cases)
    assert section.content.count("<circle") == 8 and "wrong\nFAILED: " in section.content and "worst" in section.help


def test_every_standing_needs_its_row():
    with pytest.raises(ValueError, match="1 standings of 't' for 2 rows"):
        Table("t", [Column("a")], [(1,), (2,)], ["failed"])
