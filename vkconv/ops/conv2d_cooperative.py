"""The route of conv2d by cooperative matrices, for 16-bit floats: implicit GEMM, 1x1 as the matrix that it is."""

import math
from collections.abc import Mapping

from vkconv.core import DType, align, ceil_div
from vkconv.device import Device
from vkconv.ops.base import linear_groups
from vkconv.ops.conv2d_gemm import in_slices, pads_much
from vkconv.ops.conv2d_parts import binds, constants, push
from vkconv.ops.cooperative import EIGHT, NEEDS, TILES, CooperativeTile, blocks, tiles_by_rule
from vkconv.ops.needs import INT32, ON_GPU, loop_iterations
from vkconv.ops.packing import PACK_TILES, PACKED_WEIGHTS
from vkconv.route import Call, Need, Params, Route
from vkconv.shader import Dispatch, Program, Shader, read, write

CONVOLUTION = Shader("conv2d_cooperative", DType.F16)
# Moves words of 16 bits, whatever they are.
CHANNELS_LAST = Shader("channels_last", DType.U16)
_SIDE, _LANES = 64, 256  # pixels and channels, and invocations, of a workgroup of it


# From so many input channels of a group on the input is copied. H200, us at batch 32, the copy included, and gathered:
# 64 to 64 channels 3x3 at 56x56 60 101, 256 to 256 at 14x14 72 126, 1024 to 256 1x1 at 14x14 52 88, 512 to 1024 1x1 of
# stride 2 at 28x28 123 166; fewer channels were not measured.
_LEAST_CHANNELS = 16


def is_matrix(call: Call) -> bool:
    """Whether the input is a matrix of channels by pixels as it lies, in rows of whole eights."""
    plain = call.shape("w")[2:] == (1, 1) and call["stride"] == (1, 1) and not any(call["padding"])
    return plain and math.prod(call.shape("x")[2:]) % EIGHT == 0


def _extents(call: Call) -> tuple[int, int, int]:
    """Rows and columns of a product, and how many there are: output channels of a group, pixels, groups."""
    n, c_out, oh, ow = call.shape("y")
    return c_out // call["groups"], n * oh * ow, int(call["groups"])


def _takes(call: Call, tile: CooperativeTile, device: Device) -> bool:
    """A lane gathers the elements of one pixel."""
    return is_matrix(call) or tile.local(device) % tile.columns == 0


def _eights(call: Call) -> int:
    """Words of eight channels that a pixel has."""
    return int(call["groups"]) * ceil_div(call.shape("w")[1], EIGHT)


def _last_bytes(call: Call) -> int:
    """Of the copy that has channels last, at two bytes an element."""
    n, _, h, w = call.shape("x")
    return 2 * EIGHT * _eights(call) * n * h * w


def _copies(call: Call, device: Device) -> tuple[int, ...]:
    """Whether the input is copied with channels last: what the rule says, and whether it can be otherwise."""
    if is_matrix(call) or _last_bytes(call) > device.limit("maxStorageBufferRange"):
        return (0,)
    return (1, 0) if call.shape("w")[1] >= _LEAST_CHANNELS else (0, 1)


def _params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    last = _copies(call, device)
    tiles = tiles_by_rule(*_extents(call), device, lambda tile: _takes(call, tile, device))
    if call.shape("w")[2:] == (1, 1) or last[0]:
        return {"tile": tiles, "linear": (0,), "last": last}
    linear = pads_much(call, TILES[tiles[0]].depth)
    return {"tile": tiles, "linear": (int(linear), int(not linear)), "last": last}


def _copy(call: Call, device: Device) -> Dispatch:
    """The launch that makes the copy that has channels last."""
    n, _, h, w = call.shape("x")
    push = (n * h * w, h * w, int(call["groups"]), call.shape("w")[1])
    blocks = ceil_div(n * h * w, _SIDE) * ceil_div(_eights(call) * EIGHT, _SIDE)
    groups = linear_groups(blocks * _LANES, _LANES, device)
    shared = 16 * _SIDE * (_SIDE // EIGHT + 1)
    return Dispatch(CHANNELS_LAST, (*read("x"), *write("last")), groups, (_LANES, 1, 1), push, (), shared)


def _build(call: Call, device: Device, params: Params) -> Program:
    tile, last = TILES[params["tile"]], bool(params["last"])
    linear = bool(params["linear"]) and not last  # the copy has no order of taps within channels
    kh, kw = call.shape("w")[2:]
    pack, local = in_slices(call, tile.rows, tile.depth, linear), tile.local(device)
    wide = math.prod(call.shape("y")[2:]) % EIGHT == 0
    spec = (*constants(call), linear, *tile.constants(device, True, not is_matrix(call)), wide, kh, kw, last)
    step = Dispatch(
        CONVOLUTION,
        binds(call, "packed", x="last" if last else "x"),
        linear_groups(blocks(tile, *_extents(call)) * local, local, device),
        (local, 1, 1),
        push(call),
        spec,
        tile.shared_bytes,
        pack.outer * pack.inner_padded,
    )
    prepack = pack.dispatch("w", "packed", device)
    steps = (_copy(call, device), step) if last else (step,)
    scratch = {"last": 2 * _last_bytes(call)} if last else {}
    elements = PACKED_WEIGHTS | scratch.keys()
    return Program(steps, (prepack,), {"packed": 4 * pack.size}, scratch, elements=frozenset(elements))


def _depth(call: Call) -> int:
    return math.prod(call.shape("w")[1:])


_LEAST_SIDE, _LEAST_DEPTH = 32, 16
FILLS_MATRICES = Need(
    f"at least {_LEAST_SIDE} output channels in a group and {_LEAST_SIDE} pixels, sums of {_LEAST_DEPTH} products",
    lambda call, device: min(_extents(call)[:2]) >= _LEAST_SIDE and _depth(call) >= _LEAST_DEPTH,
    lambda call, device: f"{_extents(call)[0]} channels, {_extents(call)[1]} pixels, {_depth(call)} products",
)


SOME_TILE = Need(
    "a tile with no more columns than lanes",
    lambda call, device: any(tile.fits(device) and _takes(call, tile, device) for tile in TILES),
    lambda call, device: f"subgroups of {device.subgroup_size}",
)

COOPERATIVE = Route(
    "cooperative",
    _build,
    (CONVOLUTION, PACK_TILES, CHANNELS_LAST),
    why="implicit GEMM on the GPU's matrix units, which multiply 16-bit floats many times as fast as its lanes do f32, "
    "and sum in f32; the input is gathered as the tiles need it",
    must=(
        *NEEDS,
        SOME_TILE,
        INT32,
        loop_iterations(lambda call, device: math.prod(call.shape("w")[2:]) * align(call.shape("w")[1], 64)),
    ),
    prefer=(ON_GPU, FILLS_MATRICES),
    source="llama.cpp#10597",
    params=_params,
)
