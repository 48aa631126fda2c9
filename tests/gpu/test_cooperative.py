"""Routes by cooperative matrices, on devices that have them (docs/testing_devices.md: a driver that does on a CPU)."""

import itertools

import numpy as np
import pytest
from models_kit import RECOGNISER, drawn, model_path
from required import required
from route_kit import draw
from shipped import EXHAUSTIVE

import vkconv
from vkconv.backend.runtime import select_device
from vkconv.check import check_call, expect
from vkconv.ops import OPS
from vkconv.ops.conv.wgrad.coopmat import TILES as WEIGHT_TILES
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.ops.kernels import coopmat
from vkconv.ops.kernels.coopmat import EIGHT, FRAGMENT_TILES, MATRICES, TILES, CooperativeTile, matrix_of
from vkconv.route import judge

pytestmark = pytest.mark.gpu
drivers = pytest.mark.drivers
SWAPS = ("swap_cooperative", "swap_fragment")
ROUTES = ("cooperative", "cooperative_fragment", "flipped_cooperative", "explicit_cooperative", *SWAPS)
# Whole eights and not, along either side of every operand; more blocks than one each way; activations.
MORE = (
    "matmul:a=72x40,b=40x136",
    "matmul:a=200x264,b=264x40,bias=40,act=relu",
    "matmul:a=3x40x72,b=40x48,ta=1",
    "matmul:a=64x48,b=72x48,tb=1",
    "matmul:a=48x72,b=80x48,ta=1,tb=1,bias=80,residual=72x80,act=relu",
    "matmul:a=2x1x40x8,b=3x8x64,residual=2x3x40x64",
    "matmul:a=33x0,b=0x35,bias=35",
    "matmul:a=41x133,b=133x57,bias=57",
    "matmul:a=3x37x101,b=3x101x45,act=relu",
    "matmul:a=133x41,b=133x57,ta=1",
    "matmul:a=67x70,b=35x70,tb=1",
    "matmul:a=2x129x35,b=2x51x129,ta=1,tb=1",
    "matmul:a=5x36x128,b=128x35",
    "conv2d:x=2x40x4x10,w=72x40x1x1,b=72,act=relu",
    "conv2d:x=3x40x5x8,w=40x20x1x1,residual=3x40x5x8,g=2",
    "conv2d:x=3x37x5x5,w=70x37x1x1,b=70,act=relu",
    "conv2d:x=2x66x13x11,w=70x33x1x1,g=2,residual=2x70x13x11",
    "conv2d:x=5x35x1x3,w=40x35x1x1",
    "conv2d:x=2x72x7x9,w=40x72x3x3,p=1,b=40,act=relu",
    "conv2d:x=2x40x9x16,w=48x20x3x3,p=1,s=2,residual=2x48x5x8,g=2",
    "conv2d:x=2x24x13x11,w=40x24x2x3,p=1x0x2x3,d=2x3",
    "conv2d:x=3x17x7x7,w=35x17x1x1,b=35,act=relu",
    "conv2d:x=2x42x9x11,w=46x21x1x1,residual=2x46x5x11,s=2x1,g=2,act=relu",
    "conv2d:x=2x130x11x8,w=33x130x1x1,slope=33,s=3,p=1x2x0x1,act=prelu",
    "conv2d_backward_data:dy=2x40x7x9,w=40x24x3x3,x_shape=7x9,p=1",
    "conv2d_backward_data:dy=2x48x5x8,w=48x20x1x1,x_shape=5x8,g=2,b=40,act=relu",
    "conv2d_backward_data:dy=2x40x5x8,w=40x36x1x1,x_shape=9x16,s=2",
    "conv2d_backward_data:dy=2x33x5x7,w=33x20x1x1,x_shape=9x13,s=2",
    "conv2d_backward_data:dy=3x33x5x7,w=33x17x1x1,x_shape=9x14,s=2",
    "conv2d_backward_data:dy=2x40x5x7,w=40x17x1x1,x_shape=14x13,s=3x2,act=relu",
    "conv2d_backward_data:dy=2x40x5x5,w=40x17x1x1,x_shape=14x15,s=3",
    "conv2d_backward_data:dy=1x40x5x3,w=40x17x1x1,x_shape=13x8,s=3,p=1x0x0x1,slope=17,act=prelu",
    "conv2d_backward_weight:x=3x40x5x9,dy=3x48x5x9,w_shape=48x40x1x1",
    "conv2d_backward_weight:x=2x48x4x10,dy=2x64x4x10,w_shape=64x24x1x1,g=2",
    "conv2d_backward_weight:x=3x24x9x11,dy=3x72x9x11,w_shape=72x24x3x3,p=1",
    "conv2d_backward_weight:x=2x32x13x12,add=80x16x3x2,dy=2x80x7x6,w_shape=80x16x3x2,s=2,p=1x0,g=2,scale=2,beta=-1",
    "conv2d_backward_weight:x=1x17x9x40,dy=1x33x5x19,w_shape=33x17x3x3,s=1x2,d=2x1",
)
WEIGHT_GRADIENTS = ("conv2d_backward_weight", "conv3d_backward_weight")
CASES = [case for op in ("matmul", "conv2d", *WEIGHT_GRADIENTS) for case in OPS[op].cases]
TEAMS = [name for name, tile in TILES.items() if tile.teams > 1]
EXACT = ("none", "relu", "relu6", "clip", "leaky_relu", "prelu")


@pytest.fixture(scope="module")
def facts(device):
    _, facts = select_device(device)
    if not device_multiplies("f16", facts) and not device_multiplies("bf16", facts):
        pytest.skip(f"{facts.name} has {MATRICES.actual(in_type(CASES[0], 'f16'), facts)}")
    return facts


def in_type(text, dtype):
    """The call with every operand in a 16-bit float type."""
    return parse_call(f"{text},dtype={dtype}", OPS)


def device_multiplies(dtype, facts):
    return MATRICES.test(in_type(CASES[0], dtype), facts)


def multiplied(text, dtype, facts):
    """The call in that type; where the device has no matrices of it, the test is skipped."""
    call = in_type(text, dtype)
    if not device_multiplies(dtype, facts):
        pytest.skip(f"{facts.name} has {MATRICES.actual(call, facts)}")
    return call


def routes_of(call):
    """Those of its op; of a gradient by its input the one for its stride."""
    names = SWAPS if call.op == "conv2d_backward_data" and call["stride"] != (1, 1) else ROUTES
    return [route for route in OPS[call.op].routes if route.name in names]


def agrees(call, kind, device, route, params):
    arrays = draw(call, kind)
    ran, checked = check_call(call, arrays, device=device, route=route, params=params)
    assert ran.route == route and checked.ok, f"{format_call(call, OPS)} {params}: {checked.problem}"
    if kind == "integers" and call.attrs.get("act", "none") in EXACT:
        want = expect(call, arrays).outputs[0].astype(call.half.numpy)
        np.testing.assert_array_equal(ran.outputs[0][0], want, err_msg=f"{format_call(call, OPS)} {params}")


def tiles_of(call, route):
    """What its parameter ``tile`` counts."""
    if route.name in ("cooperative_fragment", "swap_fragment"):
        return FRAGMENT_TILES
    return WEIGHT_TILES if call.op in WEIGHT_GRADIENTS and route.name == "cooperative" else TILES


def small_tile(call, route, facts):
    """The smallest for a CPU driver, which takes a minute to compile tiles of many matrices."""
    values = route.params(call, facts).get("tile", ()) if facts.kind == "cpu" else ()
    tiles = tiles_of(call, route)
    return {"tile": min(values, key=lambda i: tiles[i].rows * tiles[i].columns * tiles[i].depth)} if values else {}


@drivers
def test_lavapipe_has_matrices_from_mesa_26_1_on(device):
    """There these tests run without a GPU, by tools/drivers.sh: all skipped, they would pass for the wrong reason."""
    _, facts = select_device(device)
    if facts.fact("VkPhysicalDeviceDriverProperties", "driverID") != "VK_DRIVER_ID_MESA_LLVMPIPE":
        pytest.skip(f"{facts.name} is not lavapipe")
    assert device_multiplies("f16", facts) == (facts.driver_version >= (26, 1))


@drivers
@pytest.mark.parametrize("linear", [0, 1])
@pytest.mark.parametrize(
    "text", ["x=2x3x6x7,w=17x3x3x3,p=1", "x=2x26x5x6,w=10x13x3x3,p=1,g=2,s=2", "x=1x11x6x5,w=8x11x2x3,p=1"]
)
def test_what_is_no_element_is_zero_whatever_stands_for_it(text, linear, facts, device):
    """Gathered loads of the padding, and of channels beyond the last, load the first element of the input."""
    call = multiplied(f"conv2d:{text}", "f16", facts)
    arrays = draw(call, "normals")
    arrays["x"].flat[0] = np.inf
    route = next(route for route in OPS["conv2d"].routes if route.name == "cooperative")
    params = {**small_tile(call, route, facts), "last": 0, "linear": linear}
    ran, _ = check_call(call, arrays, device=device, route="cooperative", params=params)
    want = np.isfinite(expect(call, arrays).outputs[0])
    assert 0.5 < want.mean() < 1.0
    np.testing.assert_array_equal(np.isfinite(ran.outputs[0][0].astype(np.float32)), want)


@drivers
@pytest.mark.parametrize("linear", [0, 1])
def test_a_lane_without_a_vector_of_a_k_tile_gathers_none(linear, facts, device, monkeypatch):
    """As subgroups of 64 have them: beyond the last channels is the end of the input. With
    VKCONV_TEST_VALIDATION=gpu the layer tells of what is read there."""
    call = multiplied("conv2d:x=1x32x5x5,w=17x32x3x3,p=1", "f16", facts)
    matrix = matrix_of(facts)
    tile = CooperativeTile(16 * matrix.m, 2 * matrix.n, 2 * matrix.k, 2 * matrix.m, 2 * matrix.n)
    assert tile.fits(facts) and tile.columns * tile.team_depth // EIGHT < tile.team_local(facts)
    monkeypatch.setitem(TILES, tile.name, tile)
    monkeypatch.setattr(coopmat, "_held", coopmat._held.__wrapped__)  # which keeps what tiles there are
    params = {"tile": tile.name, "last": 0, "linear": linear, "split_k": 1}
    agrees(call, "integers", device, "cooperative", params)


@pytest.mark.share(3)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("text", [*CASES, *(pytest.param(text, marks=drivers) for text in MORE)])
def test_every_case_agrees_with_the_reference(text, dtype, facts, device):
    call = in_type(text, dtype)
    verdicts = [judge(route, call, facts) for route in routes_of(call)]
    allowed = [verdict.route for verdict in verdicts if verdict.allowed]
    if not allowed:
        pytest.skip("; ".join(f"it needs {verdict.refused_by}, here {verdict.actual}" for verdict in verdicts))
    for route in allowed:
        for kind in ("integers", "normals"):
            agrees(call, kind, device, route.name, small_tile(call, route, facts))


@pytest.mark.parametrize(
    "text",
    [
        "matmul:a=133x72,b=72x151",
        "matmul:a=72x136,b=144x72,ta=1,tb=1,bias=144",
        "conv2d:x=2x24x8x7,w=72x24x3x3,p=1",
        "conv2d:x=2x24x8x7,w=72x24x1x1",
        "conv2d:x=2x34x11x13,w=72x17x1x1,g=2",
        "conv2d_backward_data:dy=2x40x5x7,w=40x36x1x1,x_shape=9x13,s=2",
        "conv2d_backward_data:dy=2x40x5x7,w=40x36x1x1,x_shape=10x19,s=2x3",
        "conv2d_backward_weight:x=5x12x9x13,dy=5x70x9x6,w_shape=70x12x3x2,p=1x0,s=1x2",
    ],
)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_every_value_of_a_parameter_agrees_with_the_reference(text, dtype, facts, device):
    """A CPU driver takes minutes to compile tiles of many matrices, and half of one for those of teams, which the test
    of teams has."""
    call, most = multiplied(text, dtype, facts), 512 if facts.kind == "cpu" else 1 << 20
    for route in [route for route in routes_of(call) if judge(route, call, facts).allowed]:
        tiles = tiles_of(call, route)
        params = route.params(call, facts)
        taken = [
            name
            for name in params.get("tile", ())
            if tiles[name].subgroup_rows * tiles[name].subgroup_columns <= most
            and (tiles[name].teams == 1 or facts.kind != "cpu")
        ]
        for name, values in ({**params, "tile": taken} if "tile" in params else params).items():
            for value in values:
                agrees(call, "integers", device, route.name, small_tile(call, route, facts) | {name: value})


@drivers
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("split_k", [2, 3, 4])
@pytest.mark.parametrize(
    ("text", "route"),
    [
        ("matmul:a=41x521,b=521x57,bias=57,residual=41x57,act=relu", "cooperative"),
        ("matmul:a=64x524,b=524x40", "cooperative"),
        ("conv2d_backward_weight:x=3x40x13x29,dy=3x48x13x29,w_shape=48x20x1x1,g=2", "explicit_cooperative"),
        ("conv2d_backward_weight:x=1x34x16x23,add=33x34x1x1,dy=1x33x16x23,w_shape=33x34x1x1", "explicit_cooperative"),
    ],
)
def test_slices_that_are_not_equal_agree_with_the_reference(text, route, split_k, dtype, facts, device):
    """The last slice is shorter, whether or not a binding may begin with it."""
    call = multiplied(text, dtype, facts)
    (taken,) = (r for r in routes_of(call) if r.name == route)
    for kind in ("integers", "normals"):
        agrees(call, kind, device, route, {**small_tile(call, taken, facts), "split_k": split_k})


@drivers
@pytest.mark.parametrize("tile", TEAMS if EXHAUSTIVE else [""])
@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("matmul:a=41x300,b=300x57,bias=57,residual=41x57,act=relu", "16x32x256t8"),
        ("conv2d:x=3x141x5x7,w=33x141x1x1", "16x32x256t8"),  # planes of no whole words, and teams without a k-tile
        ("gemm_reduce:a=41x133,b=133x57,bias=57,op=mean,also=max,axis=n,product=1", "32x32x128t4"),
    ],
)
def test_teams_of_subgroups_agree_with_the_reference(text, least, tile, facts, device):
    """Depths that end within the part of a team, which then adds nothing."""
    call = multiplied(text, "f16", facts)
    (route,) = (r for r in OPS[call.op].routes if r.name in ("cooperative", "fused_cooperative"))
    tile = tile or least  # a CPU driver compiles it in half a minute
    if tile not in route.params(call, facts)["tile"]:
        pytest.skip(f"{facts.name} does not hold it beside what rows come to")
    agrees(call, "normals", device, route.name, {"tile": tile})


@pytest.mark.parametrize(
    "text",
    [
        "conv2d:x=2x72x8x8,w=40x72x3x3,p=1,b=40,act=relu",
        pytest.param("conv2d:x=3x40x6x6,w=48x20x3x3,p=1,residual=3x48x6x6,g=2", marks=drivers),
        "conv2d:x=2x130x7x7,w=33x130x1x1,slope=33,act=prelu",
        "conv2d:x=2x136x5x7,w=72x136x1x1,b=72",
        "conv2d:x=2x136x4x10,w=72x136x1x1,out_scale=0.5,out_shift=2",
        "conv2d:x=3x130x6x6,w=40x130x1x1,b=40",
        "conv2d:x=1x9x9x11,w=34x9x3x3,p=1,d=2",
    ],
)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_sums_in_parts_agree_with_the_reference(text, dtype, facts, device):
    """However the input is read, the outputs are stored and slices are left over; 32 parts are more than there are
    slices."""
    call = multiplied(text, dtype, facts)
    (route,) = (route for route in OPS["conv2d"].routes if route.name == "cooperative")
    legal = route.params(call, facts)
    for last, linear in itertools.product(legal["last"], legal["linear"]):
        for slices in (2, 3, 32):
            params = small_tile(call, route, facts) | {"last": last, "linear": linear, "split_k": slices}
            for kind in ("integers", "normals"):
                agrees(call, kind, device, route.name, params)
    for tile in legal["tile"] if facts.kind != "cpu" else ():
        agrees(call, "integers", device, route.name, {"tile": tile, "split_k": 3})


@pytest.mark.parametrize(
    "text",
    [
        "matmul:a=72x192,b=192x136,bias=136,act=relu",
        "matmul:a=41x144,b=144x57,alpha=0.5,beta=3,bias=57,residual=41x57",
        pytest.param("matmul:a=192x45,b=192x51,ta=1,residual=45x51", marks=drivers),
        "matmul:a=67x111,b=35x111,tb=1,bias=35,out_scale=0.5,out_shift=2",
        "matmul:a=2x96x40,b=2x48x96,ta=1,tb=1",
        "matmul:a=2x1x40x96,b=3x96x64,residual=2x3x40x64",
        "matmul:a=5x36x120,b=120x35,bias=35,act=gelu",
    ],
)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_products_in_parts_agree_with_the_reference(text, dtype, facts, device):
    """However operands lie, each part has its share of k, which need not be whole slices."""
    call = multiplied(text, dtype, facts)
    (route,) = (route for route in OPS["matmul"].routes if route.name == "cooperative")
    slices = [s for s in route.params(call, facts)["split_k"] if s > 1]
    assert slices
    for params in ({"split_k": s} for s in slices):
        for kind in ("integers", "normals"):
            agrees(call, kind, device, route.name, small_tile(call, route, facts) | params)
    for tile in route.params(call, facts)["tile"] if facts.kind != "cpu" else ():
        agrees(call, "integers", device, route.name, {"tile": tile, "split_k": slices[-1]})


@pytest.mark.parametrize(
    "text",
    [
        "gemm_reduce:a=72x40,b=40x136,axis=n",
        "gemm_reduce:a=41x133,b=133x57,bias=57,act=relu,op=mean,also=max,axis=n,product=1",
        "gemm_reduce:a=3x37x101,b=3x101x45,residual=3x37x45,op=max,axis=m",
        "gemm_reduce:a=3x37x101,b=3x101x45,residual=37x1,residual2=3x1x45,op=max,axis=m",
        pytest.param("gemm_reduce:a=67x70,b=35x70,tb=1,op=l2,axis=m,product=1", marks=drivers),
        pytest.param("gemm_reduce:a=2x1x40x96,b=3x96x64,act=gelu,op=sum_square,also=min", marks=drivers),
        pytest.param("gemm_reduce:a=5x36x20,b=20x24,op=min,keep=1,product=1", marks=drivers),
        "conv_reduce:x=3x24x5x7,w=40x24x3x3,p=1,b=40,act=relu,op=max",
        "conv_reduce:x=5x40x3x3,w=37x40x1x1,b=37,op=mean,also=sum_square,product=1",
        pytest.param("conv_reduce:x=2x24x4x8,w=72x24x1x1,residual=2x72x4x8,op=sum", marks=drivers),
        "conv_reduce:x=3x24x5x7,w=40x24x3x3,p=1,residual=3x40x5x7,residual2=1x40x1x1,act=relu,op=mean",
        pytest.param("conv_reduce:x=2x24x4x8,w=72x24x1x1,residual=1x1x4x8,op=max,product=1", marks=drivers),
        pytest.param("gemm_reduce:a=5x36x20,b=20x24,residual=36x1,residual2=24,op=mean,product=1", marks=drivers),
        pytest.param("conv_reduce:x=3x34x5x5,w=46x17x1x1,g=2,residual=3x46x5x5,op=min,product=1", marks=drivers),
        pytest.param("conv_reduce:x=2x9x11x9,w=35x9x3x2,s=2,p=1x0x2x1,slope=35,act=prelu,op=l2", marks=drivers),
    ],
)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_reductions_of_what_matrices_make_agree_with_the_reference(text, dtype, facts, device):
    """Tiles that end beyond the matrix, several of them and one along a row, one output and all."""
    call = multiplied(text, dtype, facts)
    (route,) = (route for route in OPS[call.op].routes if route.name == "fused_cooperative")
    params = small_tile(call, route, facts)
    for kind in ("integers", "normals") if call["op"] in ("sum", "max", "min") else ("normals",):
        agrees(call, kind, device, route.name, params)


@drivers
@pytest.mark.parametrize("route", ["cooperative", "cooperative_fragment"])
def test_what_is_not_finite_stays_with_its_pixel(route, facts, device):
    call = in_type("conv2d:x=2x41x5x7,w=37x41x1x1", "f16")
    if not device_multiplies("f16", facts):
        pytest.skip(f"{facts.name} has {MATRICES.actual(call, facts)}")
    arrays = draw(call, "integers")
    arrays["x"][1, 3, 2, 4], arrays["x"][0, 40, 4, 6], arrays["x"][0, 0, 0, 0] = np.nan, np.inf, -np.inf
    made = next(made for made in OPS["conv2d"].routes if made.name == route)
    params = small_tile(call, made, facts)
    ran, checked = check_call(call, arrays, device=device, route=route, params=params)
    assert checked.ok, checked.problem
    finite = np.ones((2, 5, 7), bool)
    finite[1, 2, 4] = finite[0, 4, 6] = finite[0, 0, 0] = False
    np.testing.assert_array_equal(np.isfinite(ran.outputs[0][0]), np.broadcast_to(finite[:, None], (2, 37, 5, 7)))


@drivers
@pytest.mark.parametrize(
    "text",
    [
        "conv2d:x=2x24x9x11,w=24x4x3x3,b=24,act=relu,g=6,p=1",
        "conv2d:x=3x14x6x7,w=28x2x3x3,residual=3x28x3x4,g=7,p=1,s=2",
        "conv2d:x=1x20x5x5,w=12x5x1x1,g=4",
    ],
)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_joined_groups_agree_with_the_reference(text, dtype, facts, device):
    """Each number of groups that may be joined: zeros stand between the weights of those that were."""
    call = multiplied(text, dtype, facts)
    (route,) = (route for route in OPS["conv2d"].routes if route.name == "block_diagonal")
    tile = {"conv2d": "cooperative", "conv2d/tile": "32x32x32"}
    for join in route.params(call, facts)["join"]:
        for kind in ("integers", "normals"):
            agrees(call, kind, device, route.name, {"join": join, **tile})


@drivers
def test_a_network_by_matrix_units_is_right_alone_and_together(facts, device):
    """Every convolution of a text recogniser, depthwise ones too, each from what the ones before it made."""
    required("rapidocr_onnxruntime")
    if not device_multiplies("f16", facts):
        pytest.skip(f"{facts.name} has {MATRICES.actual(in_type(CASES[0], 'f16'), facts)}")
    x = drawn(RECOGNISER, (1, 3, 48, 32))
    options = {"dtype": "f16", "routes": {"conv2d": "cooperative"}, "params": {"conv2d": {"tile": "32x32x32"}}}
    with vkconv.load(model_path(RECOGNISER), device, shapes={"x": x.shape}, **options) as session:
        ways = [node.route for node in session.plan.nodes if node.call.op == "conv2d"]
        found = session.check({"x": x})
    assert len(ways) == 38 and set(ways) == {"cooperative"}
    assert found.ok, found.problems
