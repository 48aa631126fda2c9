"""Cooperative matrices without a device that has them: who takes them, what refuses, tiles within their limits."""

import copy
import itertools
import math

import numpy as np
import pytest
from ops_device import device

from vkconv.device import Device, load_device, shipped_devices
from vkconv.ops import OPS
from vkconv.ops.conv.conv2d.coopmat import product_of
from vkconv.ops.conv.wgrad.coopmat import TILES as WEIGHT_TILES
from vkconv.ops.conv.wgrad.coopmat import takes
from vkconv.ops.core.base import defaults, reciprocal
from vkconv.ops.core.calls import parse_call
from vkconv.ops.kernels.coopmat import EIGHT, FRAGMENT_TILES, TILES, Matrix, Product, matrix_of, tiles_by_rule
from vkconv.ops.kernels.gemm import GemmProblem
from vkconv.route import choose, judge

LARGE = (
    ("matmul:a=4096x4096,b=4096x4096", "cooperative"),
    ("matmul:a=8x200x64,b=8x64x200,bias=200,act=gelu", "cooperative"),
    ("conv2d:x=32x64x56x56,w=64x64x3x3,p=1", "cooperative_fragment"),
    ("conv2d:x=8x64x56x56,w=64x64x3x3,s=2,p=1", "cooperative"),
    ("conv2d:x=32x256x28x28,w=512x256x1x1,b=512,slope=512,act=prelu", "cooperative"),
    ("conv2d_backward_data:dy=4x64x28x28,w=64x32x3x3,x_shape=28x28,p=1", "flipped_cooperative"),
    ("conv2d:x=16x512x28x28,w=1024x512x1x1,s=2", "cooperative_fragment"),
    ("conv2d:x=16x512x19x19,w=1024x512x1x1,b=1024,residual=16x1024x19x19,act=relu", "cooperative_fragment"),
    ("conv2d_backward_data:dy=32x2048x25x25,w=2048x1024x1x1,x_shape=50x50,s=2", "swap_fragment"),
    ("conv2d_backward_data:dy=32x512x28x28,w=512x256x1x1,x_shape=56x56,s=2", "swap_cooperative"),
    ("conv2d_backward_data:dy=32x512x7x7,w=512x128x1x1,x_shape=14x14,s=2", "swap_cooperative"),
    ("conv2d_backward_weight:x=32x64x56x56,dy=32x256x56x56,w_shape=256x64x1x1", "explicit_cooperative"),
    ("conv2d_backward_weight:x=16x16x225x225,dy=16x64x225x225,w_shape=64x16x3x3,p=1", "cooperative"),
    ("conv2d_backward_weight:x=8x256x28x28,dy=8x512x14x14,w_shape=512x256x1x1,s=2", "cooperative"),
    ("conv3d_backward_weight:x=2x32x9x30x30,dy=2x48x9x28x28,w_shape=48x32x3x3x3,p=1x0x0", "cooperative"),
)
SMALL = (
    "matmul:a=1x1000,b=1000x10",
    "conv2d:x=1x32x112x112,w=32x1x3x3,g=32,p=1",
    "conv2d_backward_data:dy=4x64x28x28,w=64x1x3x3,x_shape=28x28,p=1,g=64",
    "conv2d_backward_weight:x=2x64x5x5,dy=2x64x5x5,w_shape=64x64x3x3,p=1",
    "conv2d_backward_weight:x=2x64x56x56,dy=2x64x56x56,w_shape=64x1x3x3,p=1,g=64",
)


def call_of(text, dtype="f16"):
    return parse_call(f"{text},dtype={dtype}", OPS)


def tiles_of(call, route):
    """What its parameter ``tile`` counts."""
    if route.name.endswith("fragment"):
        return FRAGMENT_TILES
    return WEIGHT_TILES if "backward_weight" in call.op and route.name == "cooperative" else TILES


def verdict_of(call, facts):
    return next(judge(r, call, facts) for r in OPS[call.op].routes if r.name.endswith("cooperative"))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(("text", "route"), LARGE)
def test_large_products_take_it_on_a_device_that_has_it(text, route, dtype):
    call, facts = call_of(text, dtype), load_device("h200")
    choice = choose(OPS[call.op].routes, call, facts)
    assert choice.route.name == route
    steps = choice.route.build(call, facts, choice.params).steps
    assert {step.shader.dtype for step in steps if step.shader.kernel.matrices} == {dtype}
    assert {step.shader for step in steps} <= set(choice.route.forms)
    for step in steps:
        assert step.shared_bytes <= facts.limit("maxComputeSharedMemorySize")
        assert step.local[0] <= facts.limit("maxComputeWorkGroupInvocations")


@pytest.mark.parametrize("text", SMALL)
def test_small_ones_do_not(text):
    call = call_of(text)
    assert not choose(OPS[call.op].routes, call, load_device("h200")).route.name.endswith(("cooperative", "fragment"))


@pytest.mark.parametrize(("text", "route"), LARGE)
def test_f32_is_refused_with_the_reason(text, route):
    call = call_of(text, "f32")
    verdict = next(judge(r, call, load_device("h200")) for r in OPS[call.op].routes if r.name == route)
    assert not verdict.allowed
    assert verdict.refused_by == "elements of one 16-bit float type" and " is f32" in verdict.actual


MATRICES = {
    "h100",
    "h200",
    "geforce-rtx-3090-nvk",
    "radeon-780m-radv",
    "radeon-rx-7900-xtx-radv",
    "radeon-rx-9070-xt-radv",
}


@pytest.mark.parametrize("name", sorted(MATRICES))
def test_matrices_of_drivers_are_16_by_16(name):
    assert matrix_of(load_device(name)) == Matrix(16, 16, 16)


@pytest.mark.parametrize("name", sorted(set(shipped_devices()) - MATRICES))
def test_devices_without_matrices_refuse(name):
    facts = load_device(name)
    verdict = verdict_of(call_of(LARGE[0][0]), facts)
    assert matrix_of(facts) is None
    assert not verdict.allowed and verdict.actual.startswith("no ")


def test_what_is_missing_is_named():
    facts = dict(load_device("h200").facts)
    call = call_of(LARGE[0][0])
    features = {**facts["features"], "VkPhysicalDeviceVulkanMemoryModelFeatures": {"vulkanMemoryModel": False}}
    assert verdict_of(call, Device({**facts, "features": features})).actual == "no vulkanMemoryModel"
    rows = [m for m in facts["cooperativeMatrices"] if m["CType"] != "VK_COMPONENT_TYPE_FLOAT32_KHR"]
    verdict = verdict_of(call, Device({**facts, "cooperativeMatrices": rows}))
    assert verdict.actual == "no matrix of f16 by f16 to f32"
    extensions = {n: v for n, v in facts["extensions"].items() if n != "VK_KHR_cooperative_matrix"}
    assert verdict_of(call, Device({**facts, "extensions": extensions})).actual == "no VK_KHR_cooperative_matrix"


def without(facts, struct, name):
    return Device({**facts, "features": {**facts["features"], struct: {**facts["features"][struct], name: False}}})


def test_either_type_needs_its_own_features():
    facts = load_device("h200").facts
    arithmetic = without(facts, "VkPhysicalDeviceShaderFloat16Int8Features", "shaderFloat16")
    bfloat16 = without(facts, "VkPhysicalDeviceShaderBfloat16FeaturesKHR", "shaderBFloat16CooperativeMatrix")
    f16, bf16 = (call_of(LARGE[0][0], dtype) for dtype in ("f16", "bf16"))
    assert verdict_of(f16, arithmetic).actual == "no shaderFloat16" and verdict_of(bf16, arithmetic).preferred
    assert verdict_of(bf16, bfloat16).actual == "no shaderBFloat16CooperativeMatrix"
    assert verdict_of(f16, bfloat16).preferred


def test_matrices_of_bf16_have_the_size_of_those_of_f16_or_are_the_only_ones():
    facts = load_device("h200").facts

    def resized(kept, k):
        rows = [m for m in facts["cooperativeMatrices"] if kept(m["AType"])]
        return Device({**facts, "cooperativeMatrices": [{**m, "KSize": k if "BF" in m["AType"] else 16} for m in rows]})

    call = call_of(LARGE[0][0], "bf16")
    assert verdict_of(call, resized(lambda a: True, 32)).actual == "no matrix of bf16 by bf16 to f32, 16x16x16"
    assert verdict_of(call, resized(lambda a: "BFLOAT16" in a, 32)).preferred
    assert verdict_of(call, resized(lambda a: "BFLOAT16" not in a, 16)).actual.startswith("no matrix of bf16")


def test_a_device_may_have_matrices_of_another_size():
    """lavapipe of Mesa 26: 8x8x8, subgroups of 8."""
    facts = dict(load_device("h200").facts)
    rows = [{**m, "MSize": 8, "NSize": 8, "KSize": 8} for m in facts["cooperativeMatrices"]]
    small = Device({**facts, "cooperativeMatrices": rows})
    assert matrix_of(small) == Matrix(8, 8, 8)
    assert matrix_of(load_device("h200")) == Matrix(16, 16, 16)
    assert matrix_of(device()) is None
    call = call_of(LARGE[0][0])
    route = choose(OPS["matmul"].routes, call, small).route
    (step,) = route.build(call, small).steps
    assert [step.constants[name] for name in ("MM", "MN", "MK")] == [8, 8, 8]


@pytest.mark.parametrize(
    ("shape", "best"),
    [
        ((4096, 4096, 4096), "128x256x48"),  # 460 us; 128x256x32 442
        ((2048, 2048, 2048), "128x256x32"),
        ((256, 6272, 2304), "128x96x64"),
        ((1024, 1024, 1024), "128x64x64"),
        ((197, 3072, 768), "128x64x64_32x32"),  # 10.21 us; 128x64x64 10.18
        ((64, 100352, 256), "64x256x64"),  # 28.4 us; 64x128x32 26.3
        ((512, 25088, 128), "128x128x32_64x64"),
        ((256, 1024, 1024), "32x64x128t4"),
        ((64, 512, 1000), "16x32x256t4"),
        ((6304, 768, 3072), "128x128x64"),
    ],
)
def test_the_tile_is_near_the_one_that_was_measured_to_be_fastest(shape, best):
    rows, columns, depth = shape
    assert tiles_by_rule(Product(rows, columns, 1, depth), load_device("h200"))[0] == best


@pytest.mark.parametrize(
    ("text", "tile", "slices"),
    [
        ("conv2d:x=1x256x14x14,w=256x256x3x3,p=1", "16x32x256t8", 1),
        ("conv2d:x=1x512x7x7,w=512x512x3x3,p=1", "64x64x32", 16),
        ("conv2d:x=8x512x7x7,w=512x512x3x3,p=1", "128x128x64", 8),
        ("conv2d:x=1x2048x7x7,w=512x2048x1x1", "16x32x256t8", 1),
        ("conv2d:x=1x1024x14x14,w=256x1024x1x1", "16x32x256t4", 1),
        ("conv2d_backward_data:dy=1x256x14x14,w=256x256x3x3,x_shape=14x14,p=1", "16x32x256t8", 1),
        ("conv2d:x=1x512x7x7,w=2048x512x1x1", "32x32x128t4", 1),  # its sums are short
        ("conv2d:x=32x64x56x56,w=64x64x3x3,p=1", "64x256x64", 1),  # every unit has tiles
    ],
)
def test_long_sums_of_few_tiles_are_split_for_all_compute_units(text, tile, slices):
    call, facts = call_of(text), load_device("h200")
    route = next(route for route in OPS[call.op].routes if route.name in ("cooperative", "flipped_cooperative"))
    params = route.resolve(call, facts, {})
    inner = "conv2d/" if "conv2d" in params else ""
    assert (params[f"{inner}tile"], params[f"{inner}split_k"]) == (tile, slices)
    program = route.build(call, facts, params)
    size = call.outputs["dx" if "dx" in call.outputs else "y"].size
    assert program.scratch.get(f"{inner.replace('/', '.')}slices", 0) == (4 * slices * size if slices > 1 else 0)
    assert [step.shader.stem for step in program.steps].count("sum_split_k") == (slices > 1)


@pytest.mark.parametrize(
    ("text", "tile", "slices"),
    [
        ("matmul:a=32x2048,b=2048x1000,bias=1000,beta=3,alpha=0.5,residual=32x1000", "16x32x256t4", 1),
        ("matmul:a=64x4096,b=4096x4096", "64x128x64_32x32", 4),
        ("matmul:a=4x8x4096,b=1024x4096,tb=1", "32x128x64", 16),
        ("matmul:a=128x1024,b=1024x4096", "64x64x128", 1),  # every unit has a tile
        ("matmul:a=256x1024,b=1024x1024", "32x64x128t4", 1),
        ("matmul:a=33x0,b=0x35", "32x32x32", 1),
    ],
)
def test_long_sums_of_few_tiles_of_matmul_are_cut_too(text, tile, slices):
    call, facts = call_of(text), load_device("h200")
    route = next(route for route in OPS["matmul"].routes if route.name == "cooperative")
    params = {name: values[0] for name, values in route.params(call, facts).items()}
    assert (params["tile"], params["split_k"]) == (tile, slices)
    program = route.build(call, facts, params)
    assert program.scratch == ({"slices": 4 * slices * call.outputs["y"].size} if slices > 1 else {})
    assert [step.shader.stem for step in program.steps][1:] == ["sum_split_k"] * (slices > 1)
    assert program.steps[-1].binds[-1].buffer == ("residual" if call.has("residual") else "y")


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        # k is 24 words of eight: two thirds and a third of a k-tile, where equal slices are no whole words
        ("matmul:a=64x192,b=192x64", {1: 192, 2: 96, 3: 64, 4: 48, 6: 32, 8: 24, 12: 16, 16: 12, 24: 8, 32: 6}),
        ("matmul:a=64x111,b=111x64", {1: 111, 2: 64, 3: 37, 4: 32}),
        ("matmul:a=64x1000,b=1000x64", {1: 1000, 2: 512, 3: 352, 4: 256, 6: 192, 8: 128, 16: 64, 32: 32}),
        ("matmul:a=64x0,b=0x64", {1: 0}),
        ("matmul:a=2x1x2x1x64x64,b=1x2x1x2x64x64", {1: 64}),  # no room for another dimension of batches
        ("matmul:a=2x1x2x64x64,b=1x2x1x64x64", {1: 64, 2: 32, 4: 16, 8: 8, 16: 4, 32: 2}),
    ],
)
def test_slices_of_a_sum_of_matmul_are_equal_and_whole_words_or_of_whole_k_tiles(text, lengths):
    call = call_of(text)
    route = next(route for route in OPS["matmul"].routes if route.name == "cooperative")
    slices = sorted(route.params(call, load_device("h200"))["split_k"])
    assert {count: GemmProblem.of(call).slice_length(count, EIGHT) for count in slices} == lengths


def test_there_are_no_more_parts_than_slices():
    call, facts = call_of("conv2d:x=1x130x9x9,w=32x130x1x1"), load_device("h200")
    route = next(route for route in OPS["conv2d"].routes if route.name == "cooperative")
    program = route.build(call, facts, {"tile": "64x64x64", "split_k": 32})
    assert program.scratch["slices"] == 4 * 3 * 32 * 81


def test_sums_that_are_scattered_are_not_split():
    call, facts = call_of("conv2d_backward_data:dy=1x512x7x7,w=512x512x1x1,x_shape=14x14,s=2"), load_device("h200")
    routes = [route for route in OPS[call.op].routes if route.name.startswith("swap_") and "cooperative" in route.name]
    assert routes and all("split_k" not in route.params(call, facts) for route in routes)


@pytest.mark.parametrize(("n", "tile"), [(1, "16x32x256t8"), (8, "64x32x128t8")])
def test_sums_that_are_not_cut_have_the_tile_for_whole_ones(n, tile):
    """conv2d has these in parts, of which there is one for every unit."""
    text = f"conv2d_backward_data:dy={n}x2048x7x7,w=2048x512x1x1,x_shape=14x14,s=2"
    call, facts = call_of(text), load_device("h200")
    choice = choose(OPS[call.op].routes, call, facts)
    assert (choice.route.name, choice.params["tile"]) == ("swap_cooperative", tile)


def test_tiles_are_whole_and_the_h200_holds_every_one():
    facts = load_device("h200")
    assert all(takes(tile, facts) for tile in WEIGHT_TILES.values())
    for tile in (*TILES.values(), *FRAGMENT_TILES.values(), *WEIGHT_TILES.values()):
        assert tile.fits(facts), tile
        assert tile.rows % tile.subgroup_rows == tile.columns % tile.subgroup_columns == 0
        assert tile.teams in (1, tile.subgroups)  # each of several is one subgroup
        assert tile.least_shared_bytes <= tile.shared_bytes


@pytest.mark.parametrize("text", [text for text, _ in LARGE])
def test_every_tile_that_is_offered_builds(text):
    call, facts = call_of(text), load_device("h200")
    route = choose(OPS[call.op].routes, call, facts).route
    legal = route.legal(call, facts)
    inner = "conv2d/" if "conv2d" in legal else ""
    for value in legal[f"{inner}tile"]:
        steps = route.build(call, facts, {f"{inner}tile": value, **({"conv2d": "cooperative"} if inner else {})}).steps
        step = next(step for step in reversed(steps) if step.shader.kernel.matrices)
        tile = tiles_of(call, route)[value]
        assert step.local[0] == tile.subgroups * 32
        assert step.shared_bytes == tile.workgroup_bytes(facts) >= tile.shared_bytes


@pytest.mark.parametrize(
    ("name", "most", "staged", "nbytes"),
    [
        ("128x128x32", 48 << 10, (1, 2), 20480),  # eight subgroups of 64x32: lines of 32 sums and eight more
        ("128x256x32", 48 << 10, (1, 4), 36864),
        ("128x256x32", 32 << 10, (1, 2), 30720),  # four matrices would not fit: k-tiles take more than two
        ("32x64x128t4", 48 << 10, (2, 4), 36864),  # of each team, and all rows of it
        ("32x64x128t8", 48 << 10, (1, 4), 36864),
    ],
)
def test_sums_on_their_way_out_take_what_a_workgroup_holds(name, most, staged, nbytes):
    facts = Device(copy.deepcopy(dict(load_device("h200").facts)))
    facts.facts["properties"]["VkPhysicalDeviceProperties"]["limits"]["maxComputeSharedMemorySize"] = most
    tile = TILES[name]
    constants = tile.constants(facts, True, False)
    assert (constants["STAGED_ROWS"], constants["STAGED"]) == staged
    assert tile.workgroup_bytes(facts) == nbytes <= most


def test_a_reciprocal_divides_every_number_of_31_bits():
    rng = np.random.default_rng(0)
    for divisor in (
        2,
        3,
        4,
        5,
        7,
        49,
        196,
        625,
        3136,
        85305,
        2**16 - 1,
        2**16,
        2**16 + 1,
        2**30 - 1,
        2**30,
        2**31 - 1,
        2**31,
    ):
        factor, shift = reciprocal(divisor)
        assert factor < 2**32 and 0 <= shift < 32
        multiples = [k * divisor + d for k in (1, 2, 3, (2**31 - 1) // divisor) for d in (-1, 0, 1)]
        for x in (0, 1, 2**31 - 1, *multiples, *rng.integers(0, 2**31, 200).tolist()):
            if 0 <= x < 2**31:
                assert (x * factor >> 32) >> shift == x // divisor


@pytest.mark.parametrize(
    ("field", "value"), [("shaderRoundingModeRTEFloat16", False), ("roundingModeIndependence", "NONE")]
)
def test_results_of_f16_need_a_device_that_rounds_to_even(field, value):
    h200 = load_device("h200")
    value = f"VK_SHADER_FLOAT_CONTROLS_INDEPENDENCE_{value}" if value else value
    controls = {**h200.facts["properties"]["VkPhysicalDeviceFloatControlsProperties"], field: value}
    properties = {**h200.facts["properties"], "VkPhysicalDeviceFloatControlsProperties": controls}
    facts = Device({**h200.facts, "properties": properties})
    verdict = verdict_of(call_of(LARGE[0][0]), facts)
    assert not verdict.allowed and "shaderRoundingModeRTEFloat16" in verdict.actual
    assert verdict_of(call_of(LARGE[0][0], "bf16"), facts).allowed


def test_columns_are_counted_in_31_bits():
    """Of planes that are no whole words they are up to eight times as many as pixels."""
    facts, route = load_device("h200"), next(route for route in OPS["conv2d"].routes if route.name == "cooperative")
    most, more = (call_of(f"conv2d:x={n}x4x1x1,w=4x4x1x1") for n in ((1 << 28) - 33, 1 << 28))
    assert judge(route, most, facts).allowed
    step = route.build(most, facts).steps[-1]
    assert math.prod(step.groups) * step.constants["BN"] < 1 << 31
    verdict = judge(route, more, facts)
    assert verdict.refused_by == "a product of at most 2147483391 columns" and verdict.actual == str(1 << 31)


@pytest.mark.parametrize(
    "text",
    [
        "conv2d:x=16x160x7x7,w=960x160x1x1",
        "conv2d:x=16x40x32x32,w=504x40x5x5,p=2",
        "conv2d:x=1x88x24x24,w=336x88x3x3,p=1",
        "conv2d:x=16x3x96x96,w=32x3x3x3,s=2,p=1",
        "conv2d:x=4x96x35x35,w=96x24x3x3,p=1,g=4",
    ],
)
def test_the_input_is_read_as_should_take_the_least_time(text):
    """No other tile that was timed takes less, copied, as it lies, or gathered either way."""
    call, facts = call_of(text), load_device("h200")
    route = next(route for route in OPS["conv2d"].routes if route.name == "cooperative")
    legal = route.params(call, facts)
    least_us = route.estimated_us(call, facts, defaults(legal))
    for last, linear, tile in itertools.product(legal["last"], legal["linear"], legal["tile"]):
        product = product_of(call, last, linear)
        if product.costs(facts).has(tile, product.form):
            params = {"tile": tile, "last": last, "linear": linear, "split_k": 1}
            assert least_us <= route.estimated_us(call, facts, params) + 1e-9, params
