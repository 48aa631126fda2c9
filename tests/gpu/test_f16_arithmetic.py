"""Routes with products and short sums in f16, on devices that have the arithmetic, with 16-bit storage and without.

`vkconv check --all-ops --dtype f16 --op conv2d --op matmul` runs every case on each of them.
"""

import copy

import numpy as np
import pytest
from route_kit import draw, without_storage

import vkconv
from vkconv.backend.runtime import select_device
from vkconv.bench.engine import measure
from vkconv.bench.sampling import BenchOptions
from vkconv.check import check_call, compare, expect, run_call
from vkconv.check.sweep import sweep_call
from vkconv.core import DType
from vkconv.device import Device
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.plan.planner import Options
from vkconv.route import judge

pytestmark = [pytest.mark.gpu, pytest.mark.drivers]

# Small tiles, which compile in a tenth of the time: their loops are those of the large ones. Tails on every side,
# chains that end with the sum and before it, groups, a residual, slices.
TILE = {"channels": 4, "columns": 1}
CALLS = (
    ("conv2d:x=2x7x5x9,w=7x1x3x3,b=7,g=7,p=1,act=relu", "depthwise_f16", {"rows": 1, "columns": 4}),
    ("conv2d:x=1x3x11x14,w=6x1x5x5,g=3,p=2x1x0x1,s=2x1", "depthwise_f16", {"rows": 2, "columns": 4}),
    ("conv2d:x=2x5x7x6,w=5x1x2x3,slope=5,residual=2x5x5x5,d=2x1,p=0x0x0x1,g=5,act=prelu", "depthwise_f16", {}),
    ("conv2d:x=2x13x5x7,w=9x13x3x3,p=1,b=9,act=hard_swish", "direct_tile_f16", TILE),
    ("conv2d:x=2x10x5x7,w=14x5x2x5,p=1,g=2,s=2x1,d=1x2,residual=2x14x3x1", "direct_tile_f16", TILE),
    ("conv2d:x=1x67x4x5,w=5x67x1x1,b=5", "direct_tile_f16", {"channels": 8, "columns": 4}),
    ("conv2d:x=2x67x3x5,w=9x67x1x1,b=9,slope=9,act=prelu", "pointwise_f16", TILE),
    ("conv2d:x=2x6x7x9,w=10x3x1x1,g=2,s=2x3,residual=2x10x4x3", "pointwise_f16", {"channels": 8, "columns": 4}),
    ("conv2d:x=2x19x5x7,w=9x19x3x3,p=1,b=9,act=relu", "implicit_gemm_f16", {"tile": "32x32x16", "linear": 0}),
    ("conv2d:x=2x10x5x7,w=14x5x3x3,p=1,g=2,residual=2x14x5x7", "implicit_gemm_f16", {"tile": "32x32x16", "split_k": 3}),
    ("matmul:a=37x67,b=67x35,bias=35,act=relu", "shared_f16", {"tile": "32x32x16"}),
    ("matmul:a=3x36x40,b=44x36,ta=1,tb=1,alpha=0.5,residual=3x40x44", "shared_f16", {"tile": "32x32x16"}),
    ("matmul:a=2x1x5x67,b=3x67x9,bias=9,beta=2", "register_f16", {"rows": 4, "columns": 4}),
    ("matmul:a=37x5,b=3x5,tb=1,act=leaky_relu,act_a=0.25", "register_f16", {"rows": 1, "columns": 4, "swap": 1}),
    ("matmul:a=33x0,b=0x35,bias=35", "register_f16", {"rows": 1, "columns": 4}),
)
EXACT = ("none", "relu", "leaky_relu", "prelu")


@pytest.fixture(scope="module")
def facts(device):
    _, facts = select_device(device)
    route = next(route for route in OPS["matmul"].routes if route.name == "register_f16")
    verdict = judge(route, parse_call("matmul:a=2x2,b=2x2,dtype=f16", OPS), facts)
    if not verdict.allowed:
        pytest.skip(f"{facts.name} lacks {verdict.refused_by}")
    return facts


def in_f16(text):
    return parse_call(f"{text},dtype=f16", OPS)


@pytest.mark.parametrize(("text", "route", "params"), CALLS, ids=[f"{text}-{route}" for text, route, _ in CALLS])
def test_calls_agree_with_the_reference(text, route, params, facts, device):
    """Small integers exactly, since no sum of them is rounded."""
    call = in_f16(text)
    for kind in ("integers", "normals"):
        arrays = draw(call, kind)
        ran, checked = check_call(call, arrays, device=device, route=route, params=params)
        assert ran.route == route and checked.ok, f"{format_call(call, OPS)} {params}: {checked.problem}"
        if kind == "integers" and call["act"] in EXACT:
            (want,) = expect(call, arrays).outputs
            np.testing.assert_array_equal(ran.outputs[0][0], want.astype(np.float16))


@pytest.mark.parametrize(
    ("text", "route", "params"), [row for row in CALLS if "residual" in row[0]], ids=lambda v: str(v)
)
def test_they_agree_on_words_of_two_elements(text, route, params, facts, device):
    """As on devices with the arithmetic and no 16-bit storage, Adreno 618 for one; grids of three workgroups a row."""
    call = in_f16(text)
    limited = copy.deepcopy(dict(without_storage(device).facts))
    limited["properties"]["VkPhysicalDeviceProperties"]["limits"]["maxComputeWorkGroupCount"] = [3, 65535, 65535]
    limits, arrays = Device(limited), draw(call, "integers")
    ran, checked = check_call(call, arrays, device=device, route=route, params=params, limits=limits)
    assert ran.route == route and checked.ok, checked.problem


SMALL = (
    ("conv2d:x=1x4x3x6,w=4x4x1x1", "direct_tile_f16", TILE),
    ("conv2d:x=1x4x3x6,w=4x4x1x1", "pointwise_f16", TILE),
    ("conv2d:x=1x4x3x6,w=4x4x1x1", "implicit_gemm_f16", {"tile": "32x32x16"}),
    ("matmul:a=18x4,b=4x4", "shared_f16", {"tile": "32x32x16"}),
    ("matmul:a=18x4,b=4x4", "register_f16", {"rows": 4, "columns": 4}),
)


@pytest.mark.parametrize(("text", "route", "params"), SMALL)
def test_sums_overflow_and_nan_goes_on_as_ieee_has_it(text, route, params, facts, device):
    """90000 is infinite in f16, so that 90000 - 90000 is no number there, or infinite where only the sum is rounded."""
    call = in_f16(text)
    inner = dict.fromkeys(call.operands, 1) if call.op == "conv2d" else {"a": 1, "b": 0}
    large, special = ({n: np.ones(s.dims, np.float16) for n, s in call.operands.items() if s} for _ in range(2))
    first, second = (np.moveaxis(large[name], inner[name], 0) for name in large)
    for factor, sign in ((first, 1), (second, -1)):
        factor[0].flat[0], factor[1].flat[0] = 300, sign * 300
    special_first = np.moveaxis(special[next(iter(special))], inner[next(iter(special))], 0)
    special_first[0].flat[0], special_first[1].flat[-1] = np.inf, np.nan
    for arrays in (large, special):
        y = run_call(call, arrays, device=device, route=route, params=params).outputs[0][0]
        wanted = expect(call, arrays, route)
        assert compare(call, [y], wanted).problem == ""
        exact = np.isfinite(wanted.outputs[0]) & ~(wanted.allowed[0].may_overflow)
        np.testing.assert_array_equal(y[exact], wanted.outputs[0][exact])
        assert exact.sum() >= exact.size / 4 and not np.isfinite(y[~exact]).all()


@pytest.mark.parametrize(
    ("text", "route", "params"),
    [
        ("conv2d:x=1x459x3x3,w=4x459x3x3", "direct_tile_f16", TILE),
        ("conv2d:x=1x4131x1x2,w=4x4131x1x1", "pointwise_f16", TILE),
        ("conv2d:x=1x459x3x3,w=4x459x3x3", "implicit_gemm_f16", {"tile": "32x32x16", "split_k": 1}),
        ("matmul:a=5x4131,b=4131x6", "shared_f16", {"tile": "32x32x16"}),
        ("matmul:a=5x4131,b=4131x6", "register_f16", {"rows": 4, "columns": 4}),
    ],
)
def test_chains_end_before_ones_are_too_small_to_count(text, route, params, facts, device):
    """4131 ones are 2048 in f16, where one more rounds to no more; rounded once they are 4132."""
    call = in_f16(text)
    ones = {name: np.ones(spec.dims, np.float16) for name, spec in call.operands.items() if spec is not None}
    y = run_call(call, ones, device=device, route=route, params=params).outputs[0][0]
    assert (y == 4132).all()


def test_subnormal_numbers_are_multiplied(facts, device):
    """Where f16 keeps them; a device that takes them for zero is off by more than the reference allows."""
    if facts.fact("VkPhysicalDeviceFloatControlsProperties", "shaderDenormFlushToZeroFloat16"):
        pytest.skip("it may take them for zero")
    call = in_f16("matmul:a=4x8,b=8x2")
    arrays = {"a": np.full((4, 8), 2.0**-20, np.float16), "b": np.full((8, 2), 0.5, np.float16)}
    ran = run_call(call, arrays, device=device, route="register_f16", params={"rows": 4, "columns": 4})
    assert compare(call, ran.outputs[0], expect(call, arrays, "register_f16")).ok


def test_a_batch_of_nothing_runs_nothing(facts, device):
    call = in_f16("conv2d:x=0x4x6x6,w=4x4x1x1")
    assert run_call(call, draw(call, "normals"), device=device, route="pointwise_f16").route == "empty"


def test_a_row_of_a_benchmark_is_checked_by_its_own_tolerance(facts, device):
    options = BenchOptions(min_time_s=0.001, runs=1, warmup=0)
    call = in_f16("matmul:a=33x300,b=300x34")
    params = {"rows": 4, "columns": 4}
    rows = [measure(call, name, params=params, device=device, options=options) for name in ("register_f16", "register")]
    assert [row.check for row in rows] == ["ok", "ok"]
    assert rows[0].allowed > 10 * rows[1].allowed


def test_a_sweep_holds_them_to_their_own_tolerance(facts, device):
    """On devices without cooperative matrices, too, whose route has no parameters there."""
    call = in_f16("matmul:a=5x300,b=300x6")
    options = Options(routes={"matmul": "register_f16"})
    rows = list(sweep_call(call, draw(call, "normals"), ["swap"], device=device, facts=facts, options=options))
    assert [row.params["swap"] for row in rows] == [0, 1] and not any(row.problem for row in rows)
    assert all(row.checked.allowed > 0.01 for row in rows)


def test_a_graph_takes_them_by_name_only(facts, device):
    """Lavapipe is no GPU, whose lanes would be faster in f16: there a name is the only way."""
    half = TensorSpec((4, 32), DType.F16)
    nodes = (Node("n", "matmul", ("x", "w"), ("y",)),)
    graph = Graph({"x": half}, ("y",), nodes, {"w": np.full((32, 6), 0.1, np.float16)})
    x = np.linspace(-1, 1, 128, dtype=np.float16).reshape(4, 32)
    made = {}
    for routes in ({}, {"node:n": "register_f16"}):
        params = {"node:n": {"rows": 4, "columns": 4}} if routes else {}
        with vkconv.load(graph, device, options=Options(routes=routes, params=params)) as session:
            made[bool(routes)] = session.run({"x": x})["y"]
            assert (session.plan.nodes[0].route == "register_f16") == bool(routes)
    np.testing.assert_allclose(made[True].astype(float), made[False].astype(float), atol=0.02)
