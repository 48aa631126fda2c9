"""docs/performance.md has the tables that the committed results give, and each result says where it is from."""

import datetime
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import performance  # noqa: E402
import timings  # noqa: E402

SOURCES = timings.sources()
CALLS = timings.named(*timings.CALLS, timings.LISTS, timings.CPU)
# Calls of a superseded table that the newer one may lack.
_LACKING = 0.15


def keys(name):
    return {timings.key(row.call, SOURCES[name].dtype) for row in timings.rows(name)}


def newer(name, than):
    order = list(SOURCES)
    return SOURCES[name].date >= SOURCES[than].date and order.index(name) > order.index(than)


def test_the_tables_and_the_chart_are_what_the_results_give():
    assert performance.document(performance.DOCUMENT.read_text()) == performance.DOCUMENT.read_text()
    assert performance.chart() == performance.CHART.read_text()
    assert all(f"<!-- table: {name} -->" in performance.DOCUMENT.read_text() for name in performance.TABLES)


def test_every_table_says_what_it_is():
    assert set(SOURCES) == {path.stem for path in timings.RESULTS.iterdir()} - {"sources"}
    assert all(source.title and source.command for source in SOURCES.values())
    for source in CALLS.values():
        assert source.device and source.beside and source.tool
        assert source.dtype and source.list if source.group == timings.LISTS else source.label
    dates = [source.date for source in SOURCES.values()]
    assert dates == sorted(dates)


def test_what_is_superseded_names_a_newer_table_with_its_calls():
    superseded = {name: source.superseded_by for name, source in SOURCES.items() if source.superseded_by}
    assert superseded
    for name, by in superseded.items():
        assert SOURCES[by].group == SOURCES[name].group and SOURCES[by].current and newer(by, name), name
        assert len(keys(name) - keys(by)) <= _LACKING * len(keys(name)), name
    for name, source in SOURCES.items():
        assert not source.later or (SOURCES[source.later].current and newer(source.later, name)), name


def test_what_is_superseded_is_in_no_table_of_the_document():
    lines = performance.calls() + performance.lists()
    shown = {name for name, source in CALLS.items() if not source.superseded_by}
    assert lines.count("\n") == len(shown) + 4
    assert sum(len(bars) for _, bars in performance.bars()) == len(shown) + performance.means().count("\n") - 2
    said = performance.DOCUMENT.read_text()
    assert f"{len(CALLS) - len(shown)} of its tables are superseded" in said
    assert f"{sum(bool(source.later) for source in CALLS.values())} tables of lists appear only among the lists" in said


@pytest.mark.parametrize("name", CALLS)
def test_rows_have_times(name):
    assert all(float(row["us"]) > 0 and row["call"] for row in timings.read(name))
    assert timings.rows(name)
    assert SOURCES[name].since.keys() <= {row.call for row in timings.rows(name)}


def test_regret_is_of_tables_that_are_there():
    rows = timings.read("regret")
    assert {row["table"] for row in rows} - {""} <= timings.named(timings.LISTS).keys()
    assert {row["superseded_by"] for row in rows} - {""} <= {row["suite"] for row in rows}
    assert all(1 <= float(row["mean"]) <= float(row["worst"]) for row in rows)


def test_what_is_said_beside_the_tables_is_what_they_come_to():
    said = performance.DOCUMENT.read_text()
    one = {
        what: timings.mean(one.row.ratio for one in of if one.current and one.kind.images == 1)
        for what, halves, of in timings.groups(timings.newest())
        if not halves and what in ("depthwise", "products")
    }
    assert f"depthwise of one image ({one['depthwise']:.2f})" in said
    assert f"products of one row ({one['products']:.2f})" in said
    total, mean = performance.of_all(["h200_behind_f16", "h200_others_f16"])
    assert f"each weighted by the layers that it stands for ({total}), give {mean:.2f}" in said
    of_lists = {row["table"]: float(row["mean"]) for row in timings.read("regret") if row["table"]}
    lost = [
        of_lists[name]
        for name, source in timings.named(timings.LISTS).items()
        if name in of_lists and source.date >= datetime.date(2026, 11, 27) and not source.superseded_by
    ]
    assert f"takes {min(lost):.3f} to {max(lost):.3f} times the fastest route's" in said


def test_tables_that_were_drawn_stand_for_what_they_were_drawn_from(results):
    assert performance.of_all(["old"])[0] == 2
    file = results / "sources.toml"
    file.write_text(file.read_text().replace("[new]", "drawn_from = 6\n[new]"))
    total, mean = performance.of_all(["old", "new"])
    assert total == 9 and mean == pytest.approx((0.5 * 0.625) ** (3 / 9) * (0.25 * 0.1 * 0.1) ** (1 / 9))


@pytest.mark.parametrize(
    ("call", "dtype", "kind"),
    [
        ("conv2d:x=16x64x9x9,w=32x64x1x1,dtype=f16", "", ("1x1", True, 16)),
        ("conv2d:x=1x3x9x9,w=32x3x1x1", "", ("1x1", False, 1)),
        ("conv2d:x=1x3x9x9,w=32x3x5x5", "", ("stems", False, 1)),
        ("conv2d:x=1x8x9x9,w=32x8x5x5", "", ("5x5", False, 1)),
        ("conv2d:x=1x8x9x9,w=32x8x1x3", "", ("k x k", False, 1)),
        ("conv2d:x=1x8x9x9,w=8x1x3x3,g=8", "", ("depthwise", False, 1)),
        ("conv2d:x=1x8x9x9,w=8x4x3x3,g=2", "", ("groups", False, 1)),
        ("conv2d_backward_data:dy=2x1x3x3,w=1x1x3x3,x_shape=2x1x8x8,s=3,p=1", "", ("data gradients", False, 2)),
        ("softmax:x=8192x1000,axis=1", "", ("reductions", False, 8192)),
        ("conv2d 32x512x28x28 by 1024x512x1x1, stride 2, f16", "", ("1x1", True, 32)),
        ("conv2d 32x64x56x56 by 64x64x3x3, bf16", "", ("k x k", True, 32)),
        ("matmul 1x2048 by 2048x1000, b transposed, f32", "", ("products", False, 1)),
        ("matmul 197x768 by 768x3072", "f16", ("products", True, 197)),
        ("backward-data 4x224x235x363 to 4x32x470x725, 1x1, stride 2, bf16", "", ("data gradients", True, 4)),
    ],
)
def test_calls_have_a_class(call, dtype, kind):
    assert timings.kind(call, dtype) == kind


def test_a_call_without_a_class_is_told():
    with pytest.raises(ValueError, match="no words"):
        timings.kind("a network")


def test_every_class_has_a_table_of_what_is_behind():
    for what, halves, _ in timings.groups(timings.newest()):
        assert any(what in classes and of in (None, halves) for classes, of in performance.BEHIND.values()), what


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Two tables that have a call in common, and one that only the first has, which is older."""
    monkeypatch.setattr(timings, "RESULTS", tmp_path)
    call, other = "conv2d:x=1x8x9x9,w=8x8x1x1,s=2", "conv2d:x=1x8x9x9,w=8x8x3x3"
    (tmp_path / "old.csv").write_text(f'call,route,us,peer_us\n"{call}",a,10,5\n"{other}",a,8,5\n"{other},p=1",a,8,\n')
    (tmp_path / "new.csv").write_text(
        f'call,route,us,peer_us\n"{call}x2,dtype=f32",b,20,5\n"{other},p=2",c,50,5\n"{other},d=2",c,50,5\n'
    )
    head = 'group = "f32"\ncommand = "python tools/x.py"\ndevice = "NVIDIA H9"\ndate = 2026-01-0'
    (tmp_path / "sources.toml").write_text(
        f'[old]\ntitle = "old"\n{head}1\nlater = "new"\n[new]\ntitle = "new"\n{head}2\n'
        f'[new.since]\n"{other},p=2" = {{ route = "d", us = "4" }}\n"{other},d=2" = {{ route = "d" }}\n'
    )
    return tmp_path


def test_a_call_counts_by_its_newest_time_and_by_the_route_since(results):
    found = {one.row.call.removeprefix("conv2d:x=1x8x9x9,w=8x8x"): one for one in timings.newest()}
    assert found.keys() == {"1x1,s=2x2,dtype=f32", "3x3", "3x3,p=2", "3x3,d=2"}
    assert [one.row.ratio for one in timings.newest()] == [0.1, 0.25, 0.625, 1.25]
    assert not found["3x3"].current and found["1x1,s=2x2,dtype=f32"].current
    assert found["3x3,p=2"].row.route == "d (now)" and found["3x3,p=2"].row.us == "4"
    assert found["3x3,d=2"].row.route == "c (now d, not timed)" and found["3x3,d=2"].row.us == "50"


def test_what_is_behind_is_the_furthest_and_an_older_one(results):
    text = performance.behind(("k x k", "1x1"), False)
    assert [line.split(" | ")[5:] for line in text.splitlines()[2:]] == [
        ["0.25", "2026-01-02 |"],
        ["0.10", "2026-01-02 |"],
        ["0.62", "2026-01-01, earlier |"],
    ]
    assert performance.behind(("k x k",), True).count("\n") == 2
    assert "| k x k | f32 | 2 | 0.35 | 0.10 | - | - | - | 1 | 1 | 0.62 | 0.62 |" in performance.classes()


def test_a_superseded_table_leaves_the_line_of_its_calls(results):
    file = results / "sources.toml"
    assert performance.calls().count("\n") == 4
    file.write_text(file.read_text().replace("later", "superseded_by"))
    assert performance.calls().count("\n") == 3 and "| old |" not in performance.calls()


def test_a_field_that_is_not_known_is_refused(results):
    (results / "sources.toml").write_text(
        '[old]\ntitle = "old"\ngroup = "f32"\ncommand = "x"\ndate = 2026-01-01\nby = 1\n'
    )
    with pytest.raises(Exception, match="unknown field"):
        timings.sources()


def test_a_source_tells_its_device_and_tool():
    source = timings.Source(
        "t", "cpu", "sh tools/peers/run.sh H", datetime.date(2026, 1, 1), device="lavapipe, Mesa 22"
    )
    assert (source.on, source.tool) == ("lavapipe", "peers/run.sh")


def test_a_stale_document_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(performance, "DOCUMENT", tmp_path / "performance.md")
    monkeypatch.setattr(performance, "CHART", tmp_path / "performance.svg")
    monkeypatch.setattr(performance, "ROOT", tmp_path)
    performance.DOCUMENT.write_text("<!-- table: regret -->\n| old |\n<!-- end -->\n")
    assert performance.main(["--check"]) == 1 and "is not what the results give" in capsys.readouterr().out
    assert performance.main([]) == 0 and performance.main(["--check"]) == 0
    assert "| conv-shapes-60 |" in performance.DOCUMENT.read_text()
