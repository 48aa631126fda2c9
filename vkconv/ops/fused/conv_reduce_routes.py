"""The routes of conv_reduce: kernels of conv2d that reduce their tiles before anything is stored, and the two steps in
turn."""

import dataclasses
import math
from collections.abc import Sequence

from vkconv.call import Call
from vkconv.core import align, ceil_div
from vkconv.device import Device
from vkconv.ops.conv.common import buffers, flattened, push
from vkconv.ops.conv.conv2d.channels_last import CHANNELS_LAST, CHANNELS_LAST_WORDS
from vkconv.ops.conv.conv2d.coopmat import CONVOLUTION, SOME_TILE, CooperativeConvolution, whole_sums
from vkconv.ops.conv.conv2d.implicit_gemm import GEMM, packing, params_by_rule, steps_of
from vkconv.ops.conv.conv2d.op import CONV2D
from vkconv.ops.conv.conv2d.subgroup import SHORT_SPAN, SUBGROUP, SUBGROUP_TILE
from vkconv.ops.conv.tiles import FITS_SMALLEST, TILES
from vkconv.ops.core.base import most_shared_bytes, over_workgroups
from vkconv.ops.core.requirements import INT32, ON_CPU, ON_GPU, SHUFFLE, loop_iterations, shared_bytes
from vkconv.ops.fused.addends import product_call
from vkconv.ops.fused.definition import functions, is_single
from vkconv.ops.fused.in_parts import in_parts
from vkconv.ops.fused.in_turn import Steps, in_turn, reduce_calls, taken_alone
from vkconv.ops.fused.reduction import MATRICES_PAY, Ending, Fusion, Launch, Reduction, reducing
from vkconv.ops.fused.stages import Stage, begun, in_stages
from vkconv.ops.kernels.coopmat import NEEDS
from vkconv.ops.kernels.coopmat import TILES as MATRIX_TILES
from vkconv.ops.kernels.epilogue import RESIDUAL_BOUND, Epilogue
from vkconv.ops.kernels.gemm_tile import GemmTile
from vkconv.ops.kernels.prepack import PACK_TILES
from vkconv.ops.kernels.strided import STRIDED_COPY
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route
from vkconv.storage import Y_F32

PIXELS, WIDTH, CHANNELS, HEIGHT = (2, 3), (3,), (1,), (2,)
_SMALLEST = min(TILES.values(), key=lambda tile: tile.shared_bytes + tile.local)
_CONV_ATTRS = tuple(attr.name for attr in CONV2D.attrs)


def convolution_of(call: Call) -> Call:
    """The conv2d whose result is reduced."""
    return product_call(CONV2D, call.operands, {name: call[name] for name in _CONV_ATTRS})


def _sides(call: Call, params: Params) -> tuple[int, tuple[int, ...]]:
    """The dimensions of the result that are rows and columns of the kernels."""
    return 1, PIXELS


def steps(call: Call) -> Steps:
    """The convolution and what reduces it as calls of their own."""
    conv = convolution_of(call)
    return conv, reduce_calls(call, conv.outputs["y"], call["axes"])


def _tile_params(call: Call, device: Device) -> Legal:
    legal, most = params_by_rule(convolution_of(call), device), device.limit("maxComputeSharedMemorySize")
    return {
        "tile": tuple(name for name in legal["tile"] if _shared_bytes(TILES[name]) <= most),
        "linear": legal["linear"],
    }


def _shared_bytes(tile: GemmTile) -> int:
    """Of the k-tiles of a tile, and of a number for every four results of half of it or all."""
    return tile.shared_bytes + 4 * tile.local * tile.lane_columns


def _tile_reduction(call: Call, device: Device, params: Params) -> Reduction:
    (n, c_out, oh, ow), tile = convolution_of(call).shape("y"), TILES[params["tile"]]
    if call["axes"] == CHANNELS:
        groups: int = call["groups"]
        blocks = groups * ceil_div(c_out // groups, tile.rows)
        return Reduction(1, n * oh * ow, 1, blocks * tile.rows, tile.rows, c_out)
    lines, segment = _segments(call)
    return Reduction(1, c_out, n * lines, align(segment, 4), tile.columns, segment, lines)


def _segments(call: Call) -> tuple[int, int]:
    """Segments of an image and pixels of each: its rows or columns where these are reduced, else the image."""
    oh, ow = convolution_of(call).shape("y")[2:]
    return {WIDTH: (oh, ow), HEIGHT: (ow, oh)}.get(call["axes"], (1, oh * ow))


def _launch_tiles(call: Call, device: Device, params: Params) -> Launch:
    conv, (lines, segment) = convolution_of(call), _segments(call)
    slots = _tile_reduction(call, device, params).slots
    tile, linear = TILES[params["tile"]], bool(params["linear"])
    groups: int = conv["groups"]
    e, (kh, kw) = Epilogue.of(conv, device), conv.shape("w")[2:]
    n, c_out = conv.shape("y")[:2]
    blocks = groups * ceil_div(c_out // groups, tile.rows) * ceil_div(n * lines * align(segment, 4), tile.columns)
    along = {"ALONG_CHANNELS": call["axes"] == CHANNELS, "DOWN": call["axes"] == HEIGHT}

    def launch(end: Ending) -> Dispatch:
        made = Dispatch(
            e.variant(GEMM),
            buffers(e, "packed"),
            *over_workgroups(blocks, tile.local, device),
            push(conv, e),
            {**e.constants, **tile.constants, "LINEAR": linear, "KH": kh, "KW": kw},
            _shared_bytes(tile),
            tile.loop_iterations(steps_of(conv, tile, linear) + 1),
        )
        return reducing(made, end, push={"slots": slots, "lines": lines}, constants=along)

    return launch


def _packed(program: Program, call: Call, device: Device, params: Params) -> Program:
    conv = convolution_of(call)
    made = packing(conv, params).program(device, *program.steps, scratch=program.scratch)
    return Epilogue.of(conv, device).complete(made, conv.shape("y"), device)


def _lane_reduction(call: Call, device: Device, params: Params) -> Reduction:
    n, c_out, oh, ow = flattened(convolution_of(call)).shape("y")
    covered = align(oh * ceil_div(ow, params["columns"]), params["local"])
    return Reduction(n, c_out, 1, covered, device.subgroup_size, oh * ow)


def _by_lanes(call: Call, device: Device, params: Params) -> Program:
    """The program of conv2d's route subgroup_tile."""
    made = SUBGROUP_TILE.program(convolution_of(call), device, params)
    assert isinstance(made, Program)
    return made


def _launch_lanes(call: Call, device: Device, params: Params) -> Launch:
    (step,) = _by_lanes(call, device, params).steps
    return lambda end: reducing(step, end)


def _packed_for_lanes(program: Program, call: Call, device: Device, params: Params) -> Program:
    made = _by_lanes(call, device, params)
    return dataclasses.replace(program, prepack=made.prepack, packed=made.packed, elements=made.elements)


# Where conv2d itself takes the kernel, fusing saves writing and reading its result and costs next to nothing; where it
# takes another, that is why: 64x56x56 3x3 on lavapipe takes 5144 us, by winograd in two steps 4711.
# lavapipe, least us:                  fused_lanes  unfused
#   3x224x224 3x3 stride 2 to 32               688     1071
#   32x112x112 1x1 to 64                      1902     2542
#   four 64x28x28 1x1 to 128                  1872     2296
#   96x14x14 1x1 to 576                       1023     1205
#   512x7x7 1x1 to 2048                       5026     5604
#   320x7x7 1x1 to 1280                       2278     2545
#   32 of 64x3x3 1x1 to 64                     262      403
#   64x56x56 3x3 stride 2                     1594     1659
_takes = taken_alone(CONV2D, "convolution", convolution_of)

# Each image begins at a multiple of four: the time of the product grows as much.
_MOST_PADDING = Policy("fused.reduced_padding", float)


def _split_k(call: Call, device: Device) -> int:
    return int(params_by_rule(convolution_of(call), device)["split_k"][0])


FEW_PADDED = Requirement(
    "images, or rows of them, of whole vec4 of pixels, or little short of it",
    lambda call, device: _padding(call) <= _MOST_PADDING.of(device),
    lambda call, device: (
        f"{_segments(call)[1]} pixels, {_padding(call):.2f} times as many with padding, at most "
        f"{_MOST_PADDING.of(device):g}"
    ),
)


def _padding(call: Call) -> float:
    pixels = _segments(call)[1]
    return align(pixels, 4) / pixels


UNCUT = Requirement(
    "so many tiles that conv2d would not cut its sums into parts to keep the device busy",
    lambda call, device: _split_k(call, device) == 1,
    lambda call, device: f"{_split_k(call, device)} slices",
)


def _over(*axes: tuple[int, ...]) -> Requirement:
    return Requirement.of(
        f"a reduction over {', or over '.join(map(axes_str, axes))}",
        lambda call: call["axes"],
        lambda given: given in axes,
        axes_str,
    )


def axes_str(axes: Sequence[int]) -> str:
    """Axes of a convolution's result, in words."""
    return " and ".join(("images", "channels", "height", "width")[axis] for axis in axes)


_ALONG_MEMORY = Requirement.of(
    "no reduction over height alone: lanes beside each other would load pixels that lie a row apart",
    lambda call: call["axes"],
    lambda axes: axes != HEIGHT,
    axes_str,
)


def _first_stage(call: Call) -> Stage | None:
    """As far as tiles reduce, where more is reduced."""
    axes = call["axes"]
    done = next((done for done in (PIXELS, WIDTH, CHANNELS, HEIGHT) if set(done) < set(axes)), None)
    if done is None or not is_single(call):
        return None
    return begun(call, convolution_of(call).outputs["y"], done, axes=done)


_TILES = Fusion(
    GEMM,
    convolution_of,
    _sides,
    _tile_params,
    _tile_reduction,
    _launch_tiles,
    (_over(PIXELS, WIDTH, CHANNELS, HEIGHT), FITS_SMALLEST[0], shared_bytes(_shared_bytes(_SMALLEST)), RESIDUAL_BOUND),
    (PACK_TILES, STRIDED_COPY),
    around=_packed,
)
_LANES: Fusion = Fusion(
    SUBGROUP,
    convolution_of,
    _sides,
    lambda call, device: SUBGROUP_TILE.params(convolution_of(call), device),
    _lane_reduction,
    _launch_lanes,
    (
        *(_over(PIXELS), SHUFFLE, SHORT_SPAN, RESIDUAL_BOUND),
        loop_iterations(lambda call, device: _LANES.default(call, device).most_parts),
    ),
    (PACK_TILES, STRIDED_COPY),
    around=_packed_for_lanes,
)

# ---- matrix units


def _matrix_params(call: Call, device: Device) -> Legal:
    legal = whole_sums(convolution_of(call), device)
    names = tuple(name for name in legal["tile"] if _has_room(call, device, name, legal["last"]))
    return {**legal, "tile": names or legal["tile"]}


def _has_room(call: Call, device: Device, name: str, ways: Sequence[int]) -> bool:
    """For what the rows of a tile come to in each image that it meets, in shared memory beside the tile, however the
    input is read."""
    every = ({"tile": name, "last": last} for last in ways)
    return all(
        MATRIX_TILES[name].shared_bytes + _totals_bytes(call, device, params) <= most_shared_bytes(device)
        for params in every
    )


def _totals_bytes(call: Call, device: Device, params: Params) -> int:
    slots = _matrix_reduction(call, device, params).slots
    return len(functions(call)) * slots * MATRIX_TILES[params["tile"]].totals_bytes(device)


def _matrix_reduction(call: Call, device: Device, params: Params) -> Reduction:
    conv, tile = convolution_of(call), MATRIX_TILES[params["tile"]]
    n, c_out, oh, ow = conv.shape("y")
    columns = CooperativeConvolution(conv, device, params).plane_columns
    return Reduction(1, c_out, n, columns, tile.columns, oh * ow)


def _launch_matrices(call: Call, device: Device, params: Params) -> Launch:
    conv = convolution_of(call)
    e, made = Epilogue.of(conv, device), CooperativeConvolution(conv, device, params)
    slots = {"SLOTS": _matrix_reduction(call, device, params).slots}

    def launch(end: Ending) -> Dispatch:
        product = made.product(e)
        nbytes = MATRIX_TILES[params["tile"]].shared_bytes + _totals_bytes(call, device, params)
        return reducing(dataclasses.replace(product, shared_bytes=nbytes), end, constants=slots)

    return launch


def _packed_for_matrices(program: Program, call: Call, device: Device, params: Params) -> Program:
    conv = convolution_of(call)
    made = CooperativeConvolution(conv, device, params).around(program.steps, program.scratch)
    return Epilogue.of(conv, device).complete(made, conv.shape("y"), device)


def _room(call: Call, device: Device) -> bool:
    legal = whole_sums(convolution_of(call), device)
    return any(_has_room(call, device, name, legal["last"]) for name in legal["tile"])


_MATRICES = Fusion(
    CONVOLUTION,
    convolution_of,
    _sides,
    _matrix_params,
    _matrix_reduction,
    _launch_matrices,
    (
        *NEEDS,
        _over(PIXELS),
        INT32,
        dataclasses.replace(SOME_TILE, test=lambda call, device: SOME_TILE.test(convolution_of(call), device)),
        Requirement(
            "a tile of matrices, and what its rows come to in each image, in the shared memory of a workgroup",
            _room,
            lambda call, device: f"{most_shared_bytes(device)} bytes",
        ),
        loop_iterations(lambda call, device: math.prod(call.shape("w")[2:]) * align(call.shape("w")[1], 64)),
    ),
    (PACK_TILES, STRIDED_COPY, CHANNELS_LAST, CHANNELS_LAST_WORDS),
    to_parts=(Y_F32,),
    around=_packed_for_matrices,
)

_BY_TILES: tuple[Route, ...] = (
    _MATRICES.in_order(
        "fused_cooperative",
        "the tiles of conv2d's route cooperative, for 16-bit floats: the sums in f32 that the matrix units make go by "
        "way of shared memory, as they do to be stored, and are reduced there, each image's pixels on their own",
        (ON_GPU, _takes("cooperative"), MATRICES_PAY),
        "rocMLIR reduction-fusion RFC, stage 2",
    ),
    _TILES.in_order(
        "fused_partials",
        "the tiles of conv2d's route implicit_gemm, reduced in registers, then in shared memory: one number of a "
        "channel, image (or row of it) and tile is stored instead of all pixels, or one of a pixel and tile instead of "
        "all channels, and a second launch combines them in a fixed order",
        (ON_GPU, _takes("implicit_gemm"), UNCUT, FEW_PADDED, _ALONG_MEMORY),
        "rocMLIR reduction-fusion RFC, stage 2",
    ),
    _LANES.in_order(
        "fused_lanes",
        "the tiles of conv2d's route subgroup_tile, reduced in registers and by shuffles: no shared memory, which a "
        "CPU driver emulates slowly",
        (ON_CPU, _takes("subgroup_tile")),
    ),
    _TILES.atomic(
        "fused_atomic",
        "as fused_partials, but each workgroup adds its number to the output by an atomic operation: no scratch, but "
        "sums change in their last bits from run to run",
        (ON_GPU, _takes("implicit_gemm"), UNCUT, _ALONG_MEMORY),
        "rocMLIR reduction-fusion RFC, stage 1 and 2",
    ),
)

ROUTES: tuple[Route, ...] = (
    *_BY_TILES,
    in_stages(
        "conv_reduce",
        _first_stage,
        lambda call: call["axes"],
        _BY_TILES,
        "tiles reduced over what a launch of them can, then what is left of the axes over their few results: over "
        "images besides pixels, over channels besides pixels",
    ),
    in_parts(convolution_of),
    in_turn(
        CONV2D,
        steps,
        "the convolution by its own best route into scratch, then its reduction by its own best route: what fusing "
        "must beat",
    ),
)
