"""tools/must_pass.py: what it runs, how results are counted, and what a lack of time leaves out."""

import time

import pytest
from tool_kit import load_tool

from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call

must_pass = load_tool("must_pass")
Case = must_pass.Case


@pytest.mark.parametrize("text", must_pass.CALLS)
@pytest.mark.parametrize("dtype", must_pass.TYPES)
def test_its_calls_are_calls(text, dtype):
    parse_call(f"{text},dtype={dtype}", OPS)


def test_every_kind_of_call_that_contains_calls_is_there(monkeypatch, tmp_path):
    monkeypatch.setattr(must_pass, "networks", lambda folder: iter([("net", folder / "net.onnx", ("-i", "x=1x3"))]))
    cases = list(must_pass.cases(tmp_path))
    assert len({case.name for case in cases}) == len(cases)
    ops = {case.words[0].partition(":")[0] for case in cases}
    made_of_others = {name for name, op in OPS.items() if any(route.name == "unfused" for route in op.routes)}
    assert made_of_others <= ops
    assert [case.words[-1] for case in cases if case.alone] == list(must_pass.TYPES)
    assert ("-i", "x=1x3", "--dtype", "bf16") in [case.words[1:] for case in cases]


def test_exit_codes_are_results(capsys):
    codes = {"good": 0, "bad": 1, "refused": 2, "slow": -1}
    cases = [Case(name, (name,)) for name in codes]
    rows = must_pass.run(cases, 60, lambda words, seconds: (codes[words[0]], "said"), 2)
    assert [row.result for row in rows] == ["right", "wrong", "wrong", "left out"]
    assert "wrong" in capsys.readouterr().out


def test_what_there_is_no_time_for_is_named():
    def check(words, seconds):
        time.sleep(0.03)
        return 0, ""

    rows = must_pass.run([Case(str(i), ()) for i in range(4)], 0.02, check, 1)
    assert [row.result for row in rows] == ["right", "left out", "left out", "left out"]


def test_a_check_that_is_not_done_in_time_is_ended():
    code, said = must_pass.checker("auto")(("-h",), 0.001)
    assert code == -1 and "not done" in said


@pytest.mark.parametrize(
    ("check", "us", "before_us", "result"),
    [
        ("ok", 10.0, None, "right"),
        ("ok", 11.4, 10.0, "right"),
        ("ok", 11.6, 10.0, "slower"),
        ("ok", 5.0, 10.0, "right"),
        ("FAILED", 10.0, 10.0, "wrong"),
        ("refused", None, 10.0, "wrong"),
    ],
)
def test_what_is_slower_than_the_committed_result_is_said(check, us, before_us, result):
    row = must_pass.judged("time softmax:x=2x3", check, us, before_us)
    assert (row.result, row.us) == (result, None if result == "wrong" else us)
    assert before_us is None or result == "wrong" or "10 committed" in row.said


def test_what_is_timed_can_be_run():
    for call in must_pass.TIMED:
        parse_call(call, OPS)
    assert [row.result for row in must_pass.timed(["a", "b"], "auto", {}, 0.0)] == ["left out"] * 2
