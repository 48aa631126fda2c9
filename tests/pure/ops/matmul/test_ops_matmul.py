"""matmul without a device: shapes, errors, the layout of batches, the reference and which route is chosen."""

import itertools

import numpy as np
import pytest
from ops_device import device

from vkconv.core import GraphError
from vkconv.device import load_device
from vkconv.ops import OPS as ALL_OPS
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.ops.kernels.gemm import SHARED_TILES, GemmProblem
from vkconv.ops.kernels.prepack import best_tile
from vkconv.ops.matmul.op import MATMUL
from vkconv.route import choose, judge

OPS = {"matmul": MATMUL}


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("matmul:a=1x40x120,b=120x360,bias=360", (1, 40, 360)),
        ("matmul:a=2x1x3x4,b=5x4x6", (2, 5, 3, 6)),
        ("matmul:a=4x3,b=6x4,ta=1,tb=1", (3, 6)),
        ("matmul:a=0x3,b=3x5", (0, 5)),
        ("matmul:a=2x0,b=0x5", (2, 5)),
    ],
)
def test_shapes(text, shape):
    call = parse_call(text, OPS)
    assert call.shape("y") == shape
    assert parse_call(format_call(call, OPS), OPS) == call


SMALL = [text for text in MATMUL.cases if parse_call(text, OPS).outputs["y"].size <= 4000]


@pytest.mark.parametrize("text", SMALL)
def test_layout_addresses_every_product(text):
    """Walking the strides by hand gives the reference, also with the roles of a and b swapped."""
    call = parse_call(text, OPS)
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-3, 4, call.shape(name)).astype(np.float64) for name in "ab")
    want = np.matmul(a.swapaxes(-1, -2) if call["trans_a"] else a, b.swapaxes(-1, -2) if call["trans_b"] else b).ravel()
    for g, first, second in ((GemmProblem.of(call), a, b), (GemmProblem.of(call).transposed(), b, a)):
        got = np.zeros_like(want)
        for i, index in enumerate(np.ndindex(tuple(extent for extent, _, _ in g.batch))):
            at_a = sum(j * step for j, (_, step, _) in zip(index, g.batch, strict=True))
            at_b = sum(j * step for j, (_, _, step) in zip(index, g.batch, strict=True))
            left = np.lib.stride_tricks.as_strided(first.ravel()[at_a:], (g.m, g.k), tuple(8 * s for s in g.a))
            right = np.lib.stride_tricks.as_strided(second.ravel()[at_b:], (g.k, g.n), tuple(8 * s for s in g.b))
            rows, cols = np.mgrid[: g.m, : g.n]
            got[i * g.m * g.n + rows * g.y[0] + cols * g.y[1]] = left @ right
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("text", "m", "batch"),
    [
        ("matmul:a=3x5x7x4,b=4x6", 105, ()),
        ("matmul:a=3x5x7x4,b=1x1x4x6", 105, ()),
        ("matmul:a=3x5x7x4,b=3x5x4x6", 7, ((15, 28, 24),)),
        ("matmul:a=3x1x7x4,b=5x4x6", 7, ((3, 28, 0), (5, 0, 24))),
        ("matmul:a=3x4x7,b=4x6,ta=1", 7, ((3, 28, 0),)),
    ],
)
def test_batches_that_broadcast_alike_are_one(text, m, batch):
    g = GemmProblem.of(parse_call(text, OPS))
    assert (g.m, g.batch) == (m, batch)


def test_reference_scales_the_product_and_the_bias():
    call = parse_call("matmul:a=1x2,b=2x2,bias=2,alpha=2,beta=-1,act=relu", OPS)
    arrays = {"a": np.array([[1.0, 2.0]]), "b": np.array([[1.0, -1.0], [3.0, 0.0]]), "bias": np.array([4.0, 1.0])}
    np.testing.assert_array_equal(MATMUL.reference(call, arrays)[0], [[10.0, 0.0]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("matmul:a=3x4,b=5x6", r"a \(3x4\) sums over 4 elements, but b \(5x6\) has 5"),
        ("matmul:a=4x3,b=5x6,ta=1,tb=1", r"sums over 4 elements, but b \(5x6\) has 6"),
        ("matmul:a=2x3x4,b=3x4x6", "do not broadcast"),
        ("matmul:a=4,b=4x6", "rank 2 or more"),
        ("matmul:a=3x4,b=4x6,bias=3", "the bias is 3; with 6 columns it is 6"),
        ("matmul:a=3x4,b=4x6:f16", "one float dtype"),
        ("matmul:a=3x4,b=4x6,act=cot", "there is no activation 'cot'"),
        ("matmul:a=2x1x2x1x2x3x4,b=1x2x1x2x1x4x3", "in 5 separate groups"),
    ],
)
def test_illegal_calls_name_their_values(text, message):
    with pytest.raises(GraphError, match=message):
        parse_call(text, OPS)


@pytest.mark.parametrize(
    ("text", "kind", "route"),
    [
        ("matmul:a=1x40x120,b=120x6625", "CPU", "register"),
        ("matmul:a=8x40x15,b=8x15x40", "CPU", "register"),
        ("matmul:a=512x512,b=512x512", "INTEGRATED_GPU", "shared"),
        ("matmul:a=512x512,b=512x31", "INTEGRATED_GPU", "skinny"),
        ("matmul:a=1x2048,b=2048x1000", "DISCRETE_GPU", "skinny"),
        ("matmul:a=1x2048,b=2048x1000", "CPU", "register"),
        ("matmul:a=31x63,b=63x1000", "DISCRETE_GPU", "register"),
    ],
)
def test_route_chosen_by_rule(text, kind, route):
    assert choose(MATMUL.routes, parse_call(text, OPS), device(kind)).route.name == route


def test_shared_route_needs_its_workgroup():
    call = parse_call("matmul:a=4096x4096,b=4096x4096", OPS)
    shared = next(route for route in MATMUL.routes if route.name == "shared")
    verdict = judge(shared, call, device("DISCRETE_GPU", 32))
    assert (verdict.allowed, verdict.refused_by, verdict.actual) == (False, "workgroups of 64 invocations", "32")
    least, most = (shared.resolve(call, device("DISCRETE_GPU", lanes), {}) for lanes in (64, 1024))
    assert SHARED_TILES[least["tile"]].local == 64 and SHARED_TILES[most["tile"]].rows == 128


def test_last_route_takes_every_case():
    for text in (*MATMUL.cases, "matmul:a=70000x1x2,b=70000x2x1"):
        call = parse_call(text, OPS)
        choice = choose(MATMUL.routes, call, device(), forced=MATMUL.routes[-1].name)
        assert all(max(step.groups) <= 65535 for step in choice.route.build(call, device()).steps)


@pytest.mark.parametrize(
    ("extent", "sizes", "overhead", "tile"),
    [
        (24, (16, 12, 8), 4, 12),
        (60, (16, 12, 8), 4, 16),
        (60, (16, 12, 8), 0, 12),
        (1, (8, 4, 1), 4, 1),
        (5, (8, 4, 1), 4, 8),
        (0, (8, 4), 4, 8),
    ],
)
def test_best_tile(extent, sizes, overhead, tile):
    assert best_tile(extent, sizes, overhead) == tile


@pytest.mark.parametrize(
    ("text", "rows", "lanes", "local"),
    [
        ("matmul:a=1x2048,b=1000x2048,tb=1", 1, 1, 256),  # along k, one column's sum over all lanes
        ("matmul:a=1x2048,b=2048x1000", 1, 4, 512),  # 32 bytes of neighbours at the least
        ("matmul:a=1x4096,b=4096x4096", 1, 8, 512),
        ("matmul:a=30000x512,b=512x2", 2, 16, 128),  # columns enough for all units
        ("matmul:a=5x1,b=1x7", 4, 16, 64),
    ],
)
def test_lanes_lie_along_k_until_all_units_work(text, rows, lanes, local):
    call, h200 = parse_call(text, OPS), load_device("h200")
    params = next(route for route in MATMUL.routes if route.name == "skinny").resolve(call, h200, {})
    assert (params["rows"], params["lanes"], params["local"]) == (rows, lanes, local)


@pytest.mark.parametrize(("shared_bytes", "taken"), [(16384, 16384), (40000, 32768)])
def test_rows_of_the_skinny_route_fit_shared_memory(shared_bytes, taken):
    skinny = next(route for route in MATMUL.routes if route.name == "skinny")
    facts = device("DISCRETE_GPU", 512, shared_bytes)
    call = parse_call("matmul:a=8x640,b=640x64", OPS)
    (step,) = skinny.build(call, facts, skinny.resolve(call, facts, {"rows": 8, "local": 512})).steps
    assert step.shared_bytes == taken


def test_the_skinny_route_counts_every_loop_of_its_lanes():
    """A driver that ends all loops of an invocation after so many iterations counts those over outputs, too."""
    skinny, lavapipe = next(route for route in MATMUL.routes if route.name == "skinny"), load_device("lavapipe")
    call = parse_call("matmul:a=8x524280,b=524280x1", OPS)
    verdict = judge(skinny, call, lavapipe)
    assert not verdict.allowed and verdict.actual.startswith("65567 iterations")
    call = parse_call("matmul:a=8x520,b=520x1", OPS)
    legal = skinny.params(call, lavapipe)
    counts = {
        values: skinny.build(call, lavapipe, dict(zip(legal, values, strict=True))).steps[0].loop_iterations
        for values in itertools.product(*legal.values())
    }
    assert counts[8, 32, 64, 0] == max(counts.values()) == 65 + 16 + 16
    assert counts[1, 1, 256, 0] == 1 + 1 + 1


def test_sums_longer_than_a_drivers_loops_are_shared_by_lanes():
    for text in ("matmul:a=4x70000,b=70000x4", "gemm_reduce:a=4x70000,b=70000x4"):
        call = parse_call(text, ALL_OPS)
        choice = choose(ALL_OPS[call.op].routes, call, load_device("lavapipe"))
        assert choice.route.name in ("skinny", "unfused")


@pytest.mark.parametrize(
    ("text", "phone", "h200"),
    [
        ("matmul:a=32x40960,b=40960x32", 16, 32),
        ("matmul:a=32x40964,b=40964x32", 24, 32),  # the last slice is shorter
        ("matmul:a=32x40961,b=40961x32", 24, 32),  # a prime number
        ("matmul:a=32x18433,b=18433x32", 24, 24),
        ("matmul:a=64x64,b=64x64", 1, 1),
        ("matmul:a=512x512,b=512x512", 1, 4),  # 256 workgroups keep the 132 units of an H200 busy, but k-tiles wait
        ("matmul:a=1024x512,b=512x1024", 1, 1),
    ],
)
def test_long_sums_of_few_tiles_are_cut_in_slices(text, phone, h200):
    """On devices without matrix units too: slices, as many as keep the compute units busy, added in f32."""
    call = parse_call(text, OPS)
    for name, slices in (("mali-g610-panvk", phone), ("h200", h200)):
        facts = load_device(name)
        choice = choose(MATMUL.routes, call, facts)
        assert (choice.route.name, choice.params["split_k"]) == ("shared", slices), name
        *parts, last = choice.route.build(call, facts, choice.params).steps
        parts = parts if slices > 1 else [last]
        tile, k = SHARED_TILES[choice.params["tile"]], GemmProblem.of(call).k
        whole = GemmProblem.of(call).blocks(tile.rows, tile.columns)
        assert sum(np.prod(part.groups) for part in parts) == slices * whole
        counts = [np.prod(part.groups) // whole for part in parts]
        assert sum(count * part.push["k"] for count, part in zip(counts, parts, strict=True)) == k
        assert len(parts) == (1 if k % slices == 0 and k % (4 * slices) == 0 else 2)
