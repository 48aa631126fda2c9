"""Functions over every exponent, held to the table of docs/numbers.md, and rows whose squares leave the range."""

import importlib.util
import re
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from graph_kit import make_graph
from route_kit import draw

from vkconv.backend.runtime import select_device
from vkconv.check import check_call, expect, run_call
from vkconv.core import DType
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.planner import Options
from vkconv.route import judge
from vkconv.session import Session

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("ulp", ROOT / "tools" / "ulp.py")
ulp = importlib.util.module_from_spec(_SPEC)
sys.modules["ulp"] = ulp
_SPEC.loader.exec_module(ulp)

TABLE = {
    name: (float(f32), float(f16), float(bf16))
    for name, f32, f16, bf16 in re.findall(
        r"^\| (\w+) \| ([\d.]+) \|[^|]*\| ([\d.]+) \| ([\d.]+) \|$", ulp.PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
}


def test_the_table_has_every_function():
    assert tuple(TABLE) == (*ulp.UNARY, *ulp.BINARY)
    assert max(max(row) for row in TABLE.values()) < 4


@pytest.mark.parametrize("name", [*ulp.UNARY, *ulp.BINARY])
def test_a_function_is_as_near_as_the_table_says(name, device):
    for dtype, most in zip(ulp.TYPES, TABLE[name], strict=True):
        found = ulp.measure(name, dtype, device, per_exponent=8)
        assert found.wrong == (), (dtype, found.wrong[:4])
        assert found.ulp < most + 1 * (dtype is DType.F32) + 0.02, (dtype, found)
        assert dtype is not DType.F16 or not found.flushed


def rows_of(kind, shape, rng):
    x = rng.standard_normal(shape)
    size = float(kind) if kind[0].isdigit() else 1.0
    if kind == "constant":
        return np.full(shape, 1e20)
    if kind == "mixed":  # most of a row is ordinary, or nothing
        x *= np.where(rng.random(shape) < 0.01, 1e25, 1.0) * (np.arange(shape[-1]) % 64 < 40)
    return np.clip(x * size, -3e38, 3e38)


L2 = ("reduce:x=3x5x7,op=l2,axes=1", "reduce:x=3x5x7,op=l2,axes=0x2,keep=0", "reduce:x=2x40009,op=l2,axes=1")
L2_COLUMNS = ("reduce:x=67x24,op=l2,axes=0", "reduce:x=5003x13,op=l2,axes=0")
NORMS = (
    "layer_norm:x=3x40,scale=40,bias=40",
    "layer_norm:x=2x5x67,stats=1",
    "layer_norm:x=2x8192,bias=8192,stats=1",
    "layer_norm:x=1x40009,scale=40009,bias=40009",
    "rms_norm:x=3x40,scale=40",
    "rms_norm:x=2x20480,scale=20480",
    "instance_norm:x=2x3x5x7,scale=3,bias=3",
    "group_norm:x=2x6x4x8,scale=6,bias=6,g=3",
    "group_norm:x=1x12x60x61,scale=12,bias=12,g=2",
    "batch_norm_training:x=2x3x5x7,scale=3,bias=3,mean=3,var=3",
)
NO_EPS = tuple(f"{text},eps=0" for text in ("layer_norm:x=3x1031,stats=1", "rms_norm:x=5x131", "rms_norm:x=2x20480"))
LARGE, SMALL = ("1e20", "1e25", "3e38", "mixed"), ("1e-25", "1e-30")
CASES = [
    *((text, kind) for text in (*L2, *L2_COLUMNS) for kind in (*LARGE, *SMALL)),
    *((text, kind) for text in NORMS for kind in (*LARGE, "constant")),
    *((text, kind) for text in NO_EPS for kind in (*LARGE, *SMALL)),
]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("text", "kind"), CASES)
def test_rows_are_right_where_float64_fits(text, kind, dtype, device):
    _, facts = select_device(device)
    call, rng, ran = parse_call(f"{text},dtype={dtype}", OPS), np.random.default_rng(31), 0
    given = {}
    for name, spec in call.operands.items():
        if spec is not None:
            values = rows_of(kind if name == "x" else "1", spec.dims, rng)
            with np.errstate(all="ignore"):
                given[name] = values.astype(np.float32 if dtype == "f32" else ml_dtypes.bfloat16)
    for route in OPS[call.op].routes:
        if judge(route, call, facts).allowed:
            _, checked = check_call(call, given, route=route.name, params={})
            assert checked.ok, (route.name, checked.problem)
            ran += 1
    assert ran >= 3


@pytest.mark.parametrize("text", ["reduce:x=4x70,op=l2,axes=1", "reduce:x=70x4,op=l2,axes=0"])
def test_l2_of_nothing_infinity_and_nan(text, device):
    """Beside a row out of range, which those of one workgroup are added up again with."""
    _, facts = select_device(device)
    call = parse_call(text, OPS)
    x = np.zeros((4, 70), np.float32)
    x[0, 3], x[1, 5], x[2, 7:] = np.inf, np.nan, 1e30
    x = x if call.shape("x") == x.shape else np.ascontiguousarray(x.T)
    for route in OPS["reduce"].routes:
        if judge(route, call, facts).allowed:
            _, checked = check_call(call, {"x": x}, route=route.name, params={})
            assert checked.ok, (route.name, checked.problem)


@pytest.mark.parametrize("fixed_push", [False, True])
@pytest.mark.parametrize(
    "nodes",
    [
        [("add", "x c", "v"), ("sub", "v c", "y")],  # rounds to whole numbers
        [("add", "x w", "v"), ("sub", "v w", "y")],
        [("neg", "x", "v"), ("add", "v x", "y")],
        [("sub", "x x", "v"), ("sub", "x v", "y")],
    ],
    ids=lambda nodes: "-".join(op for op, *_ in nodes),
)
def test_steps_of_a_chain_round_as_they_do_alone(nodes, fixed_push, device):
    x = np.array([0.4, -2.6, 1e9, np.inf, -np.inf, np.nan, 7.5], np.float32)
    constants = {"c": np.array(1.5 * 2**23, np.float32), "w": np.full(7, 3e6, np.float32)}
    graph = make_graph({"x": (7,)}, nodes, "y", constants)
    with Session(graph, device, options=Options(fixed_push=fixed_push, measured={})) as session:
        assert [node.call.op for node in session.plan.nodes] == ["chain"]
        together = session.run({"x": x})["y"]
    with Session(graph, device, options=Options(passes=False, measured={})) as session:
        np.testing.assert_array_equal(together, session.run({"x": x})["y"])


# The operand of which the first element belongs to the first output channel alone, and where that is in y.
FIRST_OF = {
    **dict.fromkeys(("conv2d", "conv_transpose2d", "conv2d_backward_data", "deform_conv2d"), ("w", 1)),
    **dict.fromkeys(("prologue_conv2d", "separable_conv2d", "inverted_residual"), ("w", 1)),
    "batch_norm": ("scale", 1),
    "matmul": ("b", -1),
    "matmul_nbits": ("scale", -1),
}


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("name", FIRST_OF)
def test_a_weight_that_is_not_finite_stays_in_its_channel(name, value, device):
    _, facts = select_device(device)
    operand, axis = FIRST_OF[name]
    calls = sorted((parse_call(text, OPS) for text in OPS[name].cases), key=lambda call: call.elements)
    for route in OPS[name].routes:
        call = next((call for call in calls if judge(route, call, facts).allowed), None)
        if call is None or call.attrs.get("layout", "NCHW") != "NCHW":
            continue
        given = draw(call, "normals")
        given[operand][(0,) * given[operand].ndim] = value
        wanted = expect(call, given, route.name)
        ran = run_call(call, given, device=device, route=route.name)
        others = np.arange(1, wanted.outputs[0].shape[axis])
        of = (ran.outputs[0][0], wanted.outputs[0], wanted.allowed[0].absolute)
        got, want, most = (np.take(a, others, axis) for a in of)
        assert np.isfinite(want).all() and (np.abs(got - want) <= most).all(), (route.name, call)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("factor", [-0.1, -0.03, -0.01, 1e-30, -3e38, np.inf])
def test_celu_of_any_factor(factor, dtype, device):
    """Where e^(x / a) grows, where it is infinite and a times it is not, and where x / a is subnormal."""
    call = parse_call(f"celu:x=9x101,a={factor},dtype={dtype}", OPS)
    _, checked = check_call(call, draw(call, "normals"))
    assert checked.ok, checked.problem
