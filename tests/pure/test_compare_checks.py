"""`vkconv compare` of results of checks, of one device or of several, and of one board of a measurement of several."""

import json
from xml.etree import ElementTree

import pytest
from cli_kit import vkconv
from pages import shown

from vkconv.bench.files import read_result, write_result
from vkconv.bench.rows import Board, Header, Result, Row
from vkconv.check.compared import compare_checks, read_checks


def conformance(path, driver="1.0", **rows):
    """A result of all ops: rows by their names, each its status and its error, of an allowed one of 1."""
    made = [
        {"op": "relu", "call": f"relu:x={name}", "route": "vec4", "form": "f32", "status": status, "why": f"why {name}"}
        | {"params": {}, "max_rel": error, "allowed": 1.0}
        for name, (status, error) in rows.items()
    ]
    device = {"name": "GPU", "driver": driver, "vulkan": "1.3", "key": "k", "quirks": []}
    data = {"schema": "vkconv.conformance/1", "device": device, "rows": made}
    path.write_text(json.dumps(data))
    return data


def verdicts(a, b, board_a="", board_b=""):
    pairs = compare_checks(read_checks(a, board_a), read_checks(b, board_b)).pairs
    return {pair.name.removeprefix("relu:x=").partition(" by")[0]: pair.verdict for pair in pairs}


@pytest.fixture
def files(tmp_path):
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    old = {"same": ("ok", 0.5), "worse": ("ok", 0.5), "near": ("ok", 0.5), "broke": ("ok", 0.5), "gone": ("ok", 0.1)}
    old |= {"both": ("FAILED", 9.0), "mended": ("error", None), "refused": ("ok", 0.2), "never": ("refused", None)}
    new = {
        "same": ("ok", 0.5),
        "worse": ("ok", 0.7),
        "near": ("ok", 0.55),
        "broke": ("FAILED", 3.0),
        "new": ("ok", 0.1),
    }
    new |= {"both": ("error", None), "mended": ("ok", 0.1), "refused": ("refused", None), "never": ("refused", None)}
    conformance(a, **old)
    conformance(b, driver="2.0", **new)
    return a, b


def test_what_becomes_of_each_check(files):
    assert verdicts(*files) == {
        **{"same": "same", "near": "same", "never": "same", "worse": "error moved"},
        **{"broke": "fails in B", "mended": "fails in A", "both": "fails in both"},
        **{"gone": "only in A", "new": "only in B", "refused": "refused in B"},
    }


def test_the_command_tells_saves_and_fails(files, tmp_path):
    words = [word for suffix in ("json", "xml", "html", "md", "csv") for word in ("-o", tmp_path / f"out.{suffix}")]
    code, out, _ = vkconv("compare", *files, *words)
    assert code == 1
    assert "warning: driver differs: 1.0 in A, 2.0 in B" in out
    assert "3 same, 1 error moved, 1 fails in B" in out
    assert "relu:x=broke" in out and "relu:x=same" not in out
    data = json.loads((tmp_path / "out.json").read_text())
    assert (data["schema"], data["counts"]["fails in B"], len(data["pairs"])) == ("vkconv.compared/1", 1, 7)
    suites = ElementTree.parse(tmp_path / "out.xml").getroot()
    failed = [case.get("name") for case in suites.iter("testcase") if case.find("failure") is not None]
    assert failed == ["relu:x=broke by vec4 in f32"]
    assert "relu:x=broke" in shown(tmp_path / "out.html")
    code, out, _ = vkconv("compare", *files, "--json")
    assert code == 1 and json.loads(out)["counts"] == data["counts"]
    a, b = files
    assert vkconv("compare", b, a)[0] == 1  # what is mended one way breaks the other
    assert vkconv("compare", a, a)[0] == 0


def test_a_file_that_cannot_be_written_costs_only_itself(files, tmp_path):
    (tmp_path / "folder.json").mkdir()
    saved = tmp_path / "out.json"
    for words in ([], ["--json"]):
        saved.unlink(missing_ok=True)
        code, out, err = vkconv("compare", *files, "-o", tmp_path / "folder.json", "-o", saved, *words)
        assert (code, err) == (2, f"error: cannot write {tmp_path / 'folder.json'}: Is a directory\n")
        assert "relu:x=broke" in out and json.loads(saved.read_text())["counts"]["fails in B"] == 1


def test_boards_of_one_result(files, tmp_path):
    a, b = (json.loads(path.read_text()) for path in files)
    both = tmp_path / "both.json"
    boards = [{"board": "one", "problem": "", **a}, {"board": "10.0.0.2:5555", "problem": "", **b}]
    both.write_text(json.dumps({"schema": "vkconv.boards/1", "boards": boards}))
    assert verdicts(both, both, "one", "10.0.0.2:5555") == verdicts(*files)
    code, out, _ = vkconv("compare", f"{both}:one", f"{both}:10.0.0.2:5555")
    assert code == 1 and "1 fails in B" in out
    assert vkconv("compare", f"{files[0]}", f"{both}:one")[0] == 0
    code, _, err = vkconv("compare", both, f"{both}:on")
    assert code == 2 and "has no board 'on' (did you mean 'one'?); it has one, 10.0.0.2:5555" in err
    code, _, err = vkconv("compare", f"{files[0]}:one", both)
    assert code == 2 and "is of one device: it has no board 'one'" in err
    # One that was lost fails, and what it had left is missing.
    boards[1] = {"board": "10.0.0.2:5555", "problem": "the cable was pulled", **b, "rows": b["rows"][:1]}
    both.write_text(json.dumps({"schema": "vkconv.boards/1", "boards": boards}))
    found = compare_checks(read_checks(both, "one"), read_checks(both, "10.0.0.2:5555"))
    assert "B is incomplete: the cable was pulled" in found.warnings
    assert [pair.verdict for pair in found.pairs if pair.name == "the device"] == ["only in B"]


def model(path, route, cause="", problems=()):
    right, wrong = {"ok": True, "problem": "", "max_rel": 0.1, "allowed": 1.0}, {"ok": False, "problem": "off"}
    node = {
        "node": "n0",
        "call": "relu:x=4",
        "route": route,
        "params": {},
        "cause": cause,
        "problem": cause and "wrong",
    }
    node |= {"alone": wrong if cause else right, "run": right, "accumulated": right}
    check = {"nodes": [node], "complete": True, "graph": "g", "device": "GPU", "problem": "", "shared": []}
    data = {"schema": "vkconv.check/1", "device": {"name": "GPU", "driver": "1"}, "check": check}
    path.write_text(json.dumps(data | {"problems": list(problems)}))
    return path


def test_nodes_are_joined_by_name_whatever_route_they_take(tmp_path):
    a, b = model(tmp_path / "a.json", "vec4"), model(tmp_path / "b.json", "scalar", "alone", ["n0 is wrong"])
    (node, whole) = compare_checks(read_checks(a), read_checks(b)).pairs
    assert (node.name, node.verdict, node.a.route, node.b.route) == ("n0: relu:x=4", "fails in B", "vec4", "scalar")
    assert whole.verdict == "same"  # its node says it
    c = model(tmp_path / "c.json", "vec4", "", ["y differs when values share memory"])
    assert [pair.verdict for pair in compare_checks(read_checks(a), read_checks(c)).pairs] == ["same", "fails in B"]


def test_what_is_no_pair_of_results(files, tmp_path):
    a, _ = files
    times = tmp_path / "times.json"
    write_result(phones(), [times])
    code, _, err = vkconv("compare", a, times)
    assert code == 2 and f"{times} is of vkconv bench and {a} of vkconv check" in err
    code, _, err = vkconv("compare", a, a, "--fail-over", "1.1")
    assert code == 2 and "checks have no times" in err
    a.write_text('{"schema": "vkconv.conformance/1", "rows": [{"call": 3}]}')
    code, _, err = vkconv("compare", a, a)
    assert code == 2 and "is no result of vkconv check" in err and "rows[0]" in err
    assert vkconv("compare", a, tmp_path / "none.json")[0] == 2


def phones(us_b=30.0):
    boards = [
        Board(label=label, device=f"GPU {label}", device_key=label, driver="1", vulkan="1.1", quirks=[])
        for label in ("one", "two")
    ]
    texts = dict.fromkeys(("device_key", "driver", "vulkan"), "")
    header = Header(
        device="2 devices",
        **texts,
        versions={},
        date="2026",
        calls="c",
        options={},
        forced={},
        quirks=[],
        boards=boards,
    )
    timed = {"op": "relu", "check": "ok", "us_spread_percent": 0.1, "submissions": 10, "runs": 10}
    rows = [
        Row(device=label, call=f"relu:x={count}", route="vec4", us_median=us, **timed)
        for label, each in (("one", (10.0, 20.0)), ("two", (10.0, us_b)))
        for count, us in zip((4, 8), each, strict=True)
    ]
    return Result(header=header, rows=rows)


def test_two_phones_of_one_measurement(tmp_path):
    path = tmp_path / "phones.json"
    write_result(phones(), [path])
    code, out, err = vkconv("compare", f"{path}:one", f"{path}:two", "--fail-over", "1.2", "-o", tmp_path / "c.xml")
    assert (code, "1 same, 1 slower" in out) == (1, True)
    assert "device differs: GPU one in A, GPU two in B" in out and "1 of 2 rows fail: relu:x=8" in err
    suites = ElementTree.parse(tmp_path / "c.xml").getroot()
    assert suites.get("failures") == "1"
    assert vkconv("compare", f"{path}:one", f"{path}:two")[0] == 0
    code, _, err = vkconv("compare", f"{path}:three", path)
    assert code == 2 and "has no board 'three'" in err and "one, two" in err
    assert read_result(path).rows[0].device == "one"


def test_a_file_of_any_size_is_refused_unread(files, tmp_path):
    a, _ = files
    endless = tmp_path / "endless.json"
    with endless.open("wb") as file:
        file.truncate(1 << 40)
    code, _, err = vkconv("compare", endless, a)
    assert code == 2 and f"{endless} has {1 << 40} bytes; a result has at most {256 << 20}" in err
