"""What other systems take by their published rules: against ports of their tables that share nothing with vkconv's."""

import itertools
import math

import numpy as np
import pytest
from cli_kit import vkconv

from vkconv.core import UsageError
from vkconv.cost import occupancy_estimate
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.conv.wgrad.cost import registers
from vkconv.ops.conv.wgrad.kernels import Gemm
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.conv.wgrad.tiles import TILES
from vkconv.ops.core.calls import parse_call
from vkconv.ops.core.requirements import scratch_budget
from vkconv.ops.kernels.split_rules import arg_bands
from vkconv.plan.planner import POLICIES, Options, choose_route, plan
from vkconv.plan.single import graph_of_shapes

DEVICES = {name: load_device(name) for name in ("h200", "mali-g715", "adreno-750", "lavapipe")}


def chosen(call, device, policy, **options):
    return choose_route(call, "", device, Options(policy=policy, **options))


# ---- IREE: SetSplitReductionSizes.cpp after iree#24293, with the words of its source


def iree_find_factor(dim, at_least):
    """findSmallestFactorWithLowerBound: limited to 2^15 where the dimension is larger."""
    top = dim if dim <= 1 << 15 else 1 << 15
    for factor in range(max(at_least, 1), top + 1):
        if dim % factor == 0:
            return factor
    return dim if dim <= 1 << 15 else None


def iree_tiles(parallel, output_size, reduction, low):
    """getWeightBackwardReductionSizes: None where the convolution is left whole."""
    length = int(np.prod(reduction))
    if parallel >= 640000:
        return None
    if int(length / math.sqrt(parallel)) <= 64 and length < 8192:
        return None
    if output_size >= 2 * 1024 * 1024 and length < 50000:
        return None
    if output_size < 32 * 32:
        limit = 2048
    elif output_size < 128 * 128:
        limit = 128
    elif output_size < 256 * 256:
        if length < 50000:
            limit = 8 if low else 16
        elif length < 200000:
            limit = 16 if low else 32
        elif length < 300000:
            limit = 16 if low else 64
        else:
            limit = 64
    elif output_size < 512 * 512:
        limit = 64 if length >= 800000 else 32 if low and length >= 200000 else 16
    elif output_size >= 1024 * 1024 and length >= 200000:
        limit = 16
    else:
        limit = min(8, reduction[0])
    return iree_walk(reduction, limit)


def iree_walk(reduction, limit):
    """Tiles from the outermost dimension on, at most so many of them."""
    tiles = list(reduction)
    for axis, dim in enumerate(reduction):
        factor = iree_find_factor(dim, math.ceil(dim / limit))
        if factor is None:
            return None
        tiles[axis] = factor
        limit //= dim // factor
        if factor > 1:
            break
    return None if tiles == list(reduction) else tiles


@pytest.mark.parametrize(
    ("text", "slices"),
    [
        ("x=32x2376x15x15,w=256x2376x3x3", 8),  # [3, 3, 297], as set_split_reduction_sizes_conv.mlir has it
        ("x=32x2376x52x52,w=256x2376x3x3", 1),  # 640000 outputs side by side
        ("x=32x256x7x7,w=2376x256x3x3,p=1", 1),  # a sum of 2304
        ("x=32x2376x7x7,w=256x2376x3x3,p=1", 8),  # iree#23524: 1024 us to 203
        ("x=1x40960x4x8,w=32x40960x1x1", 32),  # a product of 32 x 40960 x 32, 128 slices, of which 32 are the most
    ],
)
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_iree_cuts_convolutions_with_the_batch_first(text, slices, dtype):
    call, device = parse_call(f"conv2d:{text},dtype={dtype}", OPS), DEVICES["h200"]
    choice = chosen(call, device, "iree")
    assert choice.by.startswith("policy iree: ") and choice.params.get("split_k", 1) == slices
    assert slices == 1 or choice.route.name == ("cooperative" if dtype == "f16" else "implicit_gemm")


def test_iree_cuts_data_gradients_of_stride_1_as_the_convolutions_that_they_are():
    """iree#23524: 7x7 1024 us to 203, 13x13 1138 us to 365."""
    for side in (7, 13):
        text = f"dy=32x2376x{side}x{side},w=2376x256x3x3,x_shape=32x256x{side}x{side},p=1"
        choice = chosen(parse_call(f"conv2d_backward_data:{text}", OPS), DEVICES["h200"], "iree")
        assert (choice.route.name, choice.params["conv2d"]) == ("flipped_conv", "implicit_gemm")
        assert choice.params["conv2d/split_k"] == 8


def random_gradients(count, seed):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        n, g = int(rng.choice([1, 2, 3, 7, 16, 32])), int(rng.choice([1, 1, 2, 4]))
        c, k = (g * int(rng.integers(1, 1 << rng.integers(1, 9))) for _ in range(2))
        h, w = (int(rng.integers(1, 1 << rng.integers(1, 9))) for _ in range(2))
        side = int(rng.choice([1, 1, 3]))
        text = f"x={n}x{c}x{h}x{w},dy={n}x{k}x{h}x{w},w_shape={k}x{c // g}x{side}x{side},p={side // 2},g={g}"
        yield parse_call(f"conv2d_backward_weight:{text}", OPS)


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.long
def test_iree_cuts_weight_gradients_as_its_source_does(name):
    device, split = DEVICES[name], 0
    low = name != "h200"  # 132 units; the others have no more than a Radeon RX 9070 XT
    for call in random_gradients(80, seed=5):
        p = WeightGradient.of(call)
        if p.kernel == (1, 1, 1):  # a contraction, once its dimensions of 1 are folded
            tiles = iree_matmul_tiles(p.rows, p.channels, p.groups, [p.n, *p.out[1:]], low)
        else:
            tiles = iree_tiles(p.rows * p.channels, p.size, [p.n, *p.out[1:]], low)
        count = math.prod(math.ceil(d / t) for d, t in zip((p.n, *p.out[1:]), tiles, strict=True)) if tiles else 1
        choice = chosen(call, device, "iree")
        if count * 4 * p.size > scratch_budget(device):
            assert choice.params["split_k"] < count
        elif choice.by.startswith("policy iree"):
            assert choice.route.name == ("split_multi" if count > 1 else "direct"), call
            if count > 1:
                assert choice.params["split_k"] == count and choice.params["policy"] == "iree"
                assert f"boxes of {tiles[0]}x1x{tiles[1]}x{tiles[2]} " in choice.route.note(call, device, choice.params)
                split += 1
        else:  # a driver that ends long loops cannot sum all in one
            assert "since iree takes direct, which needs loops that the driver runs to their end" in choice.by
    assert split >= 7


@pytest.mark.parametrize(
    ("name", "slices"),
    [("radeon-rx-7900-xtx-radv", 8), ("radeon-rx-9070-xt-radv", 8), ("radeon-680m-radv", 8), ("h200", 32)],
)
def test_irees_class_of_low_parallelism_is_all_of_rdna(name, slices):
    """A Radeon RX 7900 XTX has 96 compute units, a Radeon RX 9070 XT 64."""
    call = parse_call("conv2d_backward_weight:x=16x192x48x32,dy=16x256x48x32,w_shape=256x192x1x1", OPS)
    tiles = iree_matmul_tiles(256, 192, 1, [16, 48, 32], slices == 8)
    assert tiles and math.prod([16, 48, 32]) // math.prod(tiles) == slices
    assert chosen(call, load_device(name), "iree").params["split_k"] == slices


def iree_matmul_tiles(m, n, b, reduction, low):
    """getMatmulLikeReductionSizes: None where the product is left whole."""
    k = math.prod(reduction)
    out, ratio = m * n * b, k / math.sqrt(m * n) / b
    if out > 2048 * 4096 or (k < 18000 and ratio < 48) or (1024**2 <= out < 1500 * 1024 and k < 200000):
        return None
    if out <= 16**2 or k > 10**7:
        limit = 2048
    elif out <= 64**2:
        limit = 128
    elif out <= 128**2:
        limit = 128 if k > 10**6 else (8 if low else 64) if k < 50000 else 64
    elif k > 10**6:
        limit = 8 if low else 128
    elif out <= 256**2:
        limit = 8 if low and k < 150000 else 32
    else:
        limit = 16 if out <= 512**2 or (out <= 900**2 and k >= 10**5) else min(8, reduction[0])
    return iree_walk(reduction, limit)


@pytest.mark.parametrize("name", ["h200", "mali-g715", "radeon-rx-7900-xtx-radv", "lavapipe"])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_iree_cuts_matrix_products_as_its_source_does(dtype, name):
    device, split, rng = load_device(name), 0, np.random.default_rng(7)
    for _ in range(40):
        m, n = (int(rng.choice([1, 16, 32, 67, 128, 300, 1000])) for _ in range(2))
        k, b = int(rng.choice([64, 2048, 18000, 40960, 40961, 65537, 131072])), int(rng.choice([1, 1, 3]))
        text = f"a={b}x{m}x{k},b={b}x{k}x{n}" if b > 1 else f"a={m}x{k},b={k}x{n}"
        call = parse_call(f"matmul:{text},dtype={dtype}", OPS)
        tiles, choice = iree_matmul_tiles(m, n, b, [k], name != "h200"), chosen(call, device, "iree")
        tile = tiles[0] if tiles else None
        if tile is None:
            assert choice.params.get("split_k", 1) == 1 and choice.by.startswith("policy iree"), text
        elif k // tile * 4 * call.outputs["y"].size <= scratch_budget(device) and choice.by.startswith("policy iree"):
            assert choice.route.name in ("shared", "cooperative") and choice.params["split_k"] == k // tile, text
            split += 1
    assert split >= 8


# ---- composable_kernel: split_k_utils.hpp after #3656


def ck_k_batch(max_active_blocks, grid, gemm_k, k_per_block):
    k_batch = max(1, max_active_blocks // grid)
    k_batch = min(k_batch, (gemm_k + k_per_block - 1) // k_per_block)
    return max(1, min(k_batch, 128))


@pytest.mark.parametrize("name", ["h200", "mali-g715", "adreno-750"])
@pytest.mark.long
def test_composable_kernel_fills_the_device_once(name):
    device, seen, compared = DEVICES[name], set(), 0
    for call in random_gradients(60, seed=6):
        p, choice = WeightGradient.of(call), chosen(call, device, "ck")
        seen.add(choice.route.name)
        if call["w_shape"][2:] == (1, 1):
            assert choice.route.name == "explicit_gemm" or "since ck takes explicit_cooperative" in choice.by
            continue
        tile = TILES[choice.params["tile"]]
        if not isinstance(tile, Gemm):  # the others take no k-tiles of pixels in a row
            continue
        capacity = occupancy_estimate(device, tile.local, tile.shared_bytes, registers(tile, p, device))
        grid = p.groups * math.ceil(p.rows / tile.rows) * math.ceil(p.columns / tile.columns)
        wanted = ck_k_batch(capacity, grid, p.pixels, tile.depth)
        if wanted * 4 * p.size <= scratch_budget(device) and choice.route.name == "two_stage":
            assert choice.params["split_k"] == wanted > 1, call
            compared += 1
    assert {"explicit_gemm", "two_stage", "direct"} <= seen and compared >= 3


# ---- ExecuTorch: Convolution.cpp after executorch#20190


def executorch_method(weight, groups):
    if weight[0] == groups and weight[1] == 1:
        return "depthwise"
    return "pointwise" if weight[2] == 1 and weight[3] == 1 else "sliding window"


def executorch_uses_im2col(is_mali, weight, groups, dilation):
    if executorch_method(weight, groups) != "sliding window" or groups != 1 or dilation != 1:
        return False
    return is_mali or weight[0] >= 128


@pytest.mark.long
@pytest.mark.parametrize("name", DEVICES)
def test_executorch_takes_im2col_where_its_source_does(name):
    device, is_mali = DEVICES[name], name == "mali-g715"
    for c_out, groups, side, dilation in itertools.product((8, 64, 127, 128, 256), (1, 2, 8), (1, 3, 5), (1, 2)):
        if c_out % groups:
            continue
        c_in = 8
        text = f"conv2d:x=1x{c_in}x20x22,w={c_out}x{c_in // groups}x{side}x{side},g={groups},d={dilation}"
        call = parse_call(text, OPS)
        choice = chosen(call, device, "executorch")
        weight = (c_out, c_in // groups, side, side)
        im2col = executorch_uses_im2col(is_mali, weight, groups, dilation)
        assert (choice.route.name == "im2col_gemm") == im2col and choice.by.startswith("policy executorch"), text
        if executorch_method(weight, groups) != "sliding window":
            assert choice.route.name == executorch_method(weight, groups), text
        several = parse_call(text.replace("x=1x", "x=2x"), OPS)
        assert chosen(several, device, "executorch").by == chosen(several, device, "").by
    transposed = parse_call("conv_transpose2d:x=1x128x8x8,w=128x128x3x3,p=1", OPS)
    assert chosen(transposed, device, "executorch").route.name == "transposed_direct"


# ---- IREE: data gradients and reductions


@pytest.mark.parametrize(
    ("text", "route"),
    [
        ("dy=4x224x24x37,w=224x32x1x1,x_shape=47x73,s=2", "swap_1x1"),
        ("dy=1x32x8x8,w=32x16x1x1,x_shape=15x15,s=2", "swap_1x1"),
        ("dy=1x7x5x6,w=7x19x1x1,x_shape=8x14,s=2x3,p=1", "gather_scatter_conv"),  # no crop upstream
        ("dy=2x256x5x5,w=256x8x3x3,x_shape=10x10,s=2,p=1", "gather_scatter_conv"),
        ("dy=2x257x5x5,w=257x8x3x3,x_shape=10x10,s=2,p=1", "fill_scatter_conv"),
        ("dy=2x64x9x9,w=64x8x3x3,x_shape=9x9,p=1", "flipped_conv"),
    ],
)
@pytest.mark.parametrize("name", DEVICES)
def test_iree_scatters_data_gradients_as_its_passes_do(text, route, name):
    choice = chosen(parse_call(f"conv2d_backward_data:{text}", OPS), DEVICES[name], "iree")
    assert choice.route.name == route and choice.by.startswith("policy iree: ")


@pytest.mark.parametrize(("dims", "parts"), [("4096", 64), ("4x512", 32), ("1255x1255", 1255), ("4x15", 1)])
def test_iree_splits_reductions_as_its_tests_expect(dims, parts):
    axes = "x".join(str(i) for i in range(len(dims.split("x"))))
    choice = chosen(parse_call(f"reduce:x={dims},op=sum,axes={axes}", OPS), DEVICES["h200"], "iree")
    assert choice.params.get("parts", 1) == parts and (choice.route.name == "split") == (parts > 1)


@pytest.mark.parametrize(
    ("text", "low", "slices"),
    [
        ("x=16x64x24x16,dy=16x192x24x16,w_shape=192x64x1x1", True, 8),  # iree#24293: 45.2 us to 11.0
        ("x=16x64x24x16,dy=16x192x24x16,w_shape=192x64x1x1", False, 64),
        ("x=16x96x48x32,dy=16x96x48x32,w_shape=96x96x1x1", True, 8),  # the same: 61.3 us to 27.0
        ("x=16x288x96x48,dy=16x288x96x48,w_shape=288x288x1x1", False, 16),  # tiles of [1, 96, 48] in its test
        ("x=16x32x96x48,dy=16x32x96x48,w_shape=32x32x1x1", False, 128),  # [1, 12, 48]
    ],
)
def test_iree_takes_a_weight_gradient_of_one_tap_for_a_product(text, low, slices):
    choice = chosen(parse_call(f"conv2d_backward_weight:{text}", OPS), DEVICES["mali-g715" if low else "h200"], "iree")
    assert choice.route.name == "split_multi" and choice.params["split_k"] == slices
    assert "a product" in choice.by


def iree_outer_tiles(extents):
    """getOuterReductionSizes: the tile of each dimension; None where the sum is left whole."""
    total = math.prod(extents)
    if total < 1024:
        return None
    target, current = min(1024, max(4, math.ceil(math.sqrt(total)))), 1
    tiles = list(extents)
    for i in range(len(extents) - 1, -1, -1):
        tiles[i] = iree_find_factor(extents[i], -(-target // current)) or extents[i]
        current *= tiles[i]
    return tiles


def iree_arg_tile(extent, outermost):
    """getArgCompareReductionSizes, behind the rule for outer reductions."""
    if outermost:
        tiles = iree_outer_tiles((extent,))
        return tiles and tiles[0]
    return None if extent < 1024 else iree_find_factor(extent, 1024) or extent


def test_iree_cuts_sums_over_axes_as_its_source_does():
    """Only those over the outermost dimension, and by the dimensions of x, also where two lie as one."""
    rng, cut = np.random.default_rng(5), 0
    for _ in range(300):
        dims = tuple(int(n) for n in rng.choice([2, 3, 5, 7, 32, 33, 64, 251, 1255], rng.integers(1, 4)))
        axes = [axis for axis in range(len(dims)) if rng.random() < 0.6] or [len(dims) - 1]
        text = f"reduce:x={'x'.join(map(str, dims))},op=sum,axes={'x'.join(map(str, axes))}"
        tiles = iree_outer_tiles([dims[axis] for axis in axes]) if axes[0] == 0 else None
        parts = math.prod(dims[axis] // tile for axis, tile in zip(axes, tiles, strict=True)) if tiles else 1
        choice = chosen(parse_call(text, OPS), DEVICES["h200"], "iree")
        assert choice.by.startswith("policy iree: "), text
        assert choice.params.get("parts", 1) == parts and (choice.route.name == "split") == (parts > 1), text
        cut += parts > 1
    assert cut > 50


@pytest.mark.parametrize(
    ("dims", "axis", "parts"),
    [
        ("4x1x128256", 2, 96),  # tiles of 1336
        ("4x1x512", 2, 1),
        ("4x1x1023", 2, 1),
        ("4x1x1024", 2, 1),
        ("4x2048", 1, 2),
        ("2048x4", 0, 32),  # tiles of 64, as of a sum
        ("4x65537", 1, 1),
        ("4x131072x3", 1, 128),
    ],
)
@pytest.mark.parametrize("name", DEVICES)
def test_iree_cuts_the_axis_of_an_extreme_as_its_tests_expect(dims, axis, parts, name):
    choice = chosen(parse_call(f"arg_reduce:x={dims},axis={axis}", OPS), DEVICES[name], "iree")
    assert choice.params.get("parts", 1) == parts and (choice.route.name == "two_pass") == (parts > 1)
    assert choice.by.startswith("policy iree: ")


def test_iree_cuts_the_axis_of_an_extreme_as_its_source_does():
    rng = np.random.default_rng(6)
    for extent in {int(n) for n in (*rng.integers(1, 5000, 150), *rng.integers(5000, 2**21, 150))}:
        for outermost in (True, False):
            tile = iree_arg_tile(extent, outermost)
            assert (arg_bands(extent, outermost)[0] or extent) == (tile or extent), extent


def test_parts_that_the_scratch_does_not_hold_are_fewer():
    call, device = parse_call("arg_reduce:x=4096x200000,axis=0", OPS), DEVICES["lavapipe"]
    choice = chosen(call, device, "iree")
    assert choice.route.name == "two_pass" and "fit the scratch" in choice.by
    assert 1 < choice.params["parts"] < 64 and 8 * 200000 * choice.params["parts"] <= scratch_budget(device)


# ---- where the policy stands among other options


def test_a_forced_route_outranks_a_policy_and_a_policy_what_was_measured():
    text = "conv2d:x=1x16x8x8,w=128x16x3x3,p=1"
    call, device = parse_call(text, OPS), DEVICES["adreno-750"]
    assert chosen(call, device, "executorch", routes={"conv2d": "direct"}).by == "forced"
    parameters = chosen(call, device, "executorch", params={"conv2d": {"tile": "shared_32x32x16"}}).params
    assert parameters["tile"] == "shared_32x32x16"


def test_an_unknown_policy_is_refused_with_those_that_there_are():
    assert POLICIES == ("ck", "executorch", "iree")
    graph = graph_of_shapes(parse_call("relu:x=3", OPS))
    with pytest.raises(
        UsageError, match="no policy 'executorh' \\(did you mean 'executorch'\\?\\); one of ck, executorch, iree"
    ):
        plan(graph, DEVICES["h200"], Options(policy="executorh"))


def test_explain_says_that_a_policy_chose_and_why():
    _, told, _ = vkconv("explain", "conv2d:x=1x16x8x8,w=64x16x3x3,p=1", "-d", "adreno-750", "--policy", "executorch")
    assert "direct_tile" in told and "(policy executorch: groups, dilation, or 64 output channels of 128" in told
