"""What the check of a whole device does with a case, without one; and that references and tolerances stand numbers
that are not finite, which it draws."""

import dataclasses

import numpy as np
import pytest

from vkconv.check import Checked, conformance
from vkconv.check.calls import Expected, compare, expect
from vkconv.check.inputs import draw
from vkconv.cli.options import parse_floats
from vkconv.core import DType, LimitError, UsageError
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.route import judge

LAVAPIPE = load_device("lavapipe")
RIGHT = Checked(0.0, 0.0, 1.0)


@pytest.fixture
def ran(monkeypatch):
    """What `conform` runs, on a device that does everything right."""
    seen = []
    monkeypatch.setattr(conformance, "select_device", lambda device: (0, LAVAPIPE))
    monkeypatch.setattr(
        conformance, "run_call", lambda call, arrays, **how: seen.append((how["params"], how["replays"]))
    )
    monkeypatch.setattr(conformance, "_expected", lambda text, kind: Expected({}, (), ()))
    monkeypatch.setattr(conformance, "hold", lambda call, ran, wanted: RIGHT)
    return seen


def test_one_case_of_a_route_is_checked_with_extreme_parameters_too(ran):
    softmax = [(text, route) for text, route in conformance.cases(["softmax"]) if route == "workgroup"]
    with_params = set()
    for text, route in softmax:
        ran.clear()
        assert conformance.conform(text, route).status == "ok"
        assert [how for how in ran if not how[0]] == [({}, 2), ({}, 1)]
        if len(ran) > 2:
            with_params.add(text)
            assert {name for params, _ in ran for name in params} == {"local", "tree"}
            assert all(replays == 2 for params, replays in ran if params)
    assert len(with_params) == 1


def test_winograd_is_not_given_what_it_says_it_spreads(ran):
    conformance.conform("conv2d:x=2x5x6x9,w=7x5x3x3,b=7,p=1,act=relu", "winograd")
    assert ran[0] == ({}, 2) and all(replays == 2 for _, replays in ran)


def test_very_many_workgroups_run_once(ran):
    assert conformance.conform("matmul:a=70000x1x2,b=70000x2x1", "shared").status == "ok"
    assert ran == [({}, 1)]


def test_what_planning_computes_is_no_row_of_the_device(ran):
    row = conformance.conform("constant_of_shape:shape=2x3,value=1.5", "fill")
    assert (row.status, row.why) == ("refused", "it is computed when a graph is planned")
    assert not ran


def test_a_value_over_a_limit_is_passed_over_and_a_wrong_one_told(ran, monkeypatch):
    def run(call, arrays, **how):
        if how["params"].get("items") == 1:
            raise LimitError("too much")
        return how["params"]

    monkeypatch.setattr(conformance, "run_call", run)
    assert conformance.conform("neg:x=3x67", "elementwise").status == "ok"
    wrong = dataclasses.replace(RIGHT, problem="y[0] is 1, the reference 2", pattern="all over")
    monkeypatch.setattr(conformance, "hold", lambda call, params, wanted: wrong if params else RIGHT)
    row = conformance.conform("neg:x=3x67", "elementwise")
    ((name, value),) = row.params.items()
    assert row.status == "FAILED" and row.why == f"with {name} = {value}: {wrong.problem}"
    assert row.command().endswith(f"--route neg=elementwise --param neg:elementwise={name}:{value}")


def test_an_op_that_does_not_exist_is_refused_with_a_hint():
    with pytest.raises(UsageError, match=r"'sofmax'.*softmax"):
        conformance.cases(["sofmax"])


# Values a little beside the reference, as a kernel has them, and specials exactly where the reference has them.
@pytest.mark.parametrize(
    "text",
    [text for op in ("chain", "deform_conv2d", "grid_sample", "resize") for text in OPS[op].cases],
)
def test_rounding_beside_numbers_that_are_not_finite_is_no_fault(text):
    call = parse_call(text, OPS)
    if not any(judge(route, call, LAVAPIPE).allowed for route in OPS[call.op].routes):
        pytest.skip("no route here")
    wanted = expect(call, draw(call, 7, "specials"))
    with np.errstate(invalid="ignore"):
        near = [np.asarray(out, np.float64) * (1 + 2.0**-22) for out in wanted.outputs]
    typed = [out.astype(spec.dtype.numpy) for out, spec in zip(near, call.outputs.values(), strict=True)]
    checked = compare(call, typed, wanted)
    assert checked.ok, checked.problem


def test_a_place_outside_the_picture_reads_zero_whatever_is_nearest():
    call = parse_call("deform_conv2d:x=1x1x2x2,w=1x1x1x1,offset=1x2x2x2", OPS)
    x = np.full((1, 1, 2, 2), np.inf, np.float32)
    offset = np.zeros((1, 2, 2, 2), np.float32)
    offset[0, 0] = [[-1.0, np.nan], [np.inf, -1e30]]
    (y,) = expect(call, {"x": x, "w": np.ones((1, 1, 1, 1), np.float32), "offset": offset}).outputs
    np.testing.assert_array_equal(y, np.zeros((1, 1, 2, 2)))


def test_cases_in_other_types_are_those_that_have_floats_and_go_with_them():
    def texts(op, *dtypes):
        return list(dict.fromkeys(text for text, _ in conformance.cases([op], dtypes or (DType.F32,))))

    assert texts("neg", DType.F16, DType.BF16) == [
        f"{text},dtype={d}" for d in ("f16", "bf16") for text in texts("neg")
    ]
    assert texts("neg", DType.F32) == texts("neg")
    assert not texts("logical_xor", DType.F16) and not texts("conv_integer", DType.BF16)
    assert all(parse_call(text, OPS).half is DType.F16 for text in texts("cast", DType.F16))


def test_types_to_check_in():
    assert parse_floats(None) == [DType.F32]
    assert parse_floats(["bf16,f16", "f16"]) == [DType.BF16, DType.F16]
    with pytest.raises(UsageError, match="'relu=f16': with --all-ops it is one or more of"):
        parse_floats(["relu=f16"])
