"""Routes of a transposed convolution that make blocks of stride x stride outputs: register tiles of whole blocks, and
implicit GEMM phase by phase for GPUs."""

import dataclasses
import math
from collections.abc import Mapping

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.conv.common import FEW_TAPS, buffers, push
from vkconv.ops.conv.tiles import FITS_SMALLEST, TILES, split_k, tiles_by_rule
from vkconv.ops.conv.transpose.phases import FEW_PHASES, axes, inverses
from vkconv.ops.core.base import local_sizes, over_workgroups
from vkconv.ops.core.requirements import FLOATS, ON_GPU, TILES_KEPT, lane_by_lane, shuffles, unrolls
from vkconv.ops.kernels.compiled import element_of
from vkconv.ops.kernels.epilogue import SUM_SPLIT_K, Epilogue
from vkconv.ops.kernels.gemm_tile import Compilers, GemmTile
from vkconv.ops.kernels.prepack import PACK_TILES, InvocationTiles, Packing
from vkconv.ops.kernels.split_k import fills, split_k_by_rule
from vkconv.ops.kernels.strided import STRIDED_COPY
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program, Word
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route

PHASES = Shader(shaders.transpose.CONV_TRANSPOSE2D_PHASES)
# By outputs that are written as one vector, and who shares loads of weights: nobody, subgroups, workgroups.
_SHARED = ((), (("SHARED_LOADS", ""),), (("SHARED_MEMORY", ""),))
BLOCKS: Mapping[tuple[int, int], Shader] = {
    (store, shared): Shader(
        shaders.transpose.CONV_TRANSPOSE2D_BLOCKS, defines=(("WRITTEN", str(store)), *_SHARED[shared])
    )
    for store in (4, 2, 1)
    for shared in range(len(_SHARED))
}


def packing(call: Call, tile: int, depth: int | None = None) -> Packing:
    """How the weights lie, tiles of output channels side by side: [group][tile][c_in][taps][channel], or with the
    ``depth`` of a k-tile [group][tile][taps][c_in up to depth][channel]."""
    c_in, out_group, kh, kw = call.shape("w")
    groups, taps = int(call["groups"]), kh * kw
    in_group = c_in // groups
    channels, kernel = (in_group, out_group * taps), (taps, 1)
    (outer, outer_stride), (inner, inner_stride) = (channels, kernel) if depth is None else (kernel, channels)
    return Packing(
        rows=out_group,
        tile=tile,
        row_stride=taps,
        outer=outer,
        outer_stride=outer_stride,
        inner=inner,
        inner_stride=inner_stride,
        inner_step=depth or 1,
        groups=groups,
        group_stride=in_group * out_group * taps,
    )


def _image_blocks(call: Call) -> tuple[int, int]:
    """Rows and columns of blocks of the output."""
    h, w = axes(call)
    return ceil_div(h.outputs, h.stride), ceil_div(w.outputs, w.stride)


def _workgroups(call: Call, tile: GemmTile) -> int:
    """Of one phase."""
    columns = call.shape("x")[0] * math.prod(_image_blocks(call))
    return int(call["groups"]) * ceil_div(call.shape("w")[1], tile.rows) * ceil_div(columns, tile.columns)


def _chunks(call: Call, tile: GemmTile) -> int:
    """k-tiles of the channels of a tap."""
    return ceil_div(call.shape("x")[1] // int(call["groups"]), tile.depth)


def _phase_params(call: Call, device: Device) -> Legal:
    phases, (h, w) = math.prod(call["stride"]), axes(call)
    groups: int = call["groups"]
    depth = call.shape("w")[0] // groups * h.most_taps * w.most_taps
    compilers = Compilers(shaders.transpose.CONV_TRANSPOSE2D_PHASES, device, element_of(call))
    tiles = tiles_by_rule(call.shape("w")[1], depth, groups, lambda tile: phases * _workgroups(call, tile), compilers)
    tile = TILES[tiles[0]]
    together = int(fills(_workgroups(call, tile), device))
    slices = split_k_by_rule(phases * _workgroups(call, tile), h.most_taps * w.most_taps * _chunks(call, tile), device)
    return {"tile": tiles, "together": (together, 1 - together), "split_k": slices}


def _build_phases(call: Call, device: Device, params: Params) -> Program:
    tile, together, slices = TILES[params["tile"]], bool(params["together"]), params["split_k"]
    h, w = axes(call)
    phases = math.prod(call["stride"])
    pack = packing(call, tile.rows, tile.depth)
    workgroups = _workgroups(call, tile) * slices * (1 if together else phases)
    epilogue = Epilogue.of(call, device)

    def product(e: Epilogue) -> Dispatch:
        return Dispatch(
            PHASES,
            buffers(e, "packed"),
            *over_workgroups(workgroups, tile.local, device),
            push(call, e),
            {**e.constants, **tile.constants, "TOGETHER": together, "SPLIT_K": slices, **inverses(h, w)},
            tile.shared_bytes,
            2 * phases + tile.loop_iterations(h.kernel * w.kernel * _chunks(call, tile)),
        )

    steps, scratch = split_k(call, epilogue, slices, device, product)
    return epilogue.complete(pack.program(device, *steps, scratch=scratch), call.shape("y"), device)


@dataclasses.dataclass(frozen=True, slots=True)
class BlockTiles(InvocationTiles):
    """Columns are blocks of a row; an invocation holds so many sums at most, by rule and at all. Whether 16-bit weights
    that a workgroup shares lie in shared memory as f32, and bytes of it at most."""

    rule_sums: int
    most_sums: int
    halves_in_shared: bool
    most_shared_bytes: int


_TILES = Policy("transpose.blocks", BlockTiles)


def _tile_bytes(call: Call, channels: int) -> int:
    """Of the weights of so many output channels, in f32."""
    return 4 * channels * call.shape("x")[1] // int(call["groups"]) * math.prod(call.shape("w")[2:])


def _block_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    t, phases = _TILES.of(device), math.prod(call["stride"])
    channels = tuple(co for co in t.rows.values(call.shape("w")[1], device) if co * phases <= t.most_sums)
    sums = channels[0] * phases
    local = local_sizes(device, *t.local)
    # Lanes share loads in full subgroups.
    full = all(size % device.subgroup_size == 0 for size in local)
    shares = lane_by_lane(device) and shuffles(device) and full
    in_memory = (
        0 < _tile_bytes(call, max(channels)) <= min(t.most_shared_bytes, device.limit("maxComputeSharedMemorySize"))
    )
    legal = [px for px in t.columns.values(_image_blocks(call)[1], device) if sums * px <= t.most_sums]
    columns = sorted(legal, key=lambda px: sums * px > t.rule_sums)
    subgroups = ((1, 0) if unrolls(device) else (0, 1)) if shares else (0,)
    sharing = (*subgroups, *((2,) if in_memory else ()))
    if in_memory and call.half and t.halves_in_shared:
        # Weights of 16 bits become f32 once for a workgroup, and not in every lane; the more columns share one.
        columns.sort(key=lambda px: (sums * px > t.rule_sums, -px))
        sharing = tuple(reversed(sharing))
    return {"channels": channels, "columns": tuple(columns), "shared_loads": sharing, "local": local}


def _build_blocks(call: Call, device: Device, params: Params) -> Program:
    h, w = axes(call)
    co, px, local = params["channels"], params["columns"], params["local"]
    out_group, groups = call.shape("w")[1], int(call["groups"])
    rows, columns = _image_blocks(call)
    units = rows * ceil_div(columns, px)
    workgroups = call.shape("x")[0] * groups * ceil_div(out_group, co) * ceil_div(units, local)
    store = next(s for s in (4, 2, 1) if px * w.stride % s == 0 and w.outputs % s == 0)
    shared, in_group = params["shared_loads"], call.shape("x")[1] // groups
    pack = packing(call, co)
    (sh, sw), (dh, dw), (pt, pl) = call["stride"], call["dilation"], call["padding"][:2]
    sizes = {"CO": co, "PX": px, "KH": h.kernel, "KW": w.kernel, "SH": sh, "SW": sw, "DH": dh, "DW": dw}
    sharing: tuple[dict[str, Word], ...] = ({}, {"SUBGROUP": device.subgroup_size}, {"IN_GROUP": in_group})
    e = Epilogue.of(call, device)
    step = Dispatch(
        BLOCKS[store, shared],
        buffers(e, "packed"),
        *over_workgroups(workgroups, local, device),
        push(call, e),
        {**e.constants, **sizes, "PT": pt, "PL": pl, **sharing[shared]},
        _tile_bytes(call, co) if shared == 2 else 0,
        in_group,
    )
    return e.complete(pack.program(device, step), call.shape("y"), device)


# All taps and all outputs of a block are unrolled, and so are the inputs that reach them.
_MOST_PHASES, _MOST_REACH = 16, 12


def _reach(call: Call) -> int:
    """Inputs along an axis from the first to the last that reach a block."""
    reach = 0
    for axis, pad in zip(axes(call), call["padding"], strict=False):
        last = ((axis.kernel - 1) * axis.dilation - pad) // axis.stride
        reach = max(reach, last + ceil_div(pad, axis.stride) + 1)
    return reach


SMALL_BLOCKS = Requirement.of(
    f"at most {_MOST_PHASES} outputs in a block of the strides",
    lambda call: math.prod(call["stride"]),
    lambda outputs: outputs <= _MOST_PHASES,
    "{} outputs".format,
)
SHORT_REACH = Requirement.of(
    f"a block from at most {_MOST_REACH} inputs of a row and of a column",
    _reach,
    lambda reach: reach <= _MOST_REACH,
    "{} inputs".format,
)
FITS_BLOCKS = SMALL_BLOCKS, FEW_TAPS, SHORT_REACH
_NARROW = Policy("transpose.narrow_groups", float)
NARROW_GROUPS = Requirement(
    "as few output channels in a group as are taken in blocks on such devices",
    lambda call, device: call.shape("w")[1] <= _NARROW.of(device),
    lambda call, device: f"{call.shape('w')[1]} channels, at most {_NARROW.of(device):g}",
)

TRANSPOSED_BLOCKS = Route(
    "transposed_blocks",
    _build_blocks,
    (*BLOCKS.values(), PACK_TILES, STRIDED_COPY),
    why="an invocation makes whole blocks of stride x stride outputs: an input that it loads meets every tap, each at "
    "its place of a block, and rows of outputs are written as they lie",
    must=(FLOATS, *FITS_BLOCKS),
    prefer=(NARROW_GROUPS, TILES_KEPT),
    params=_block_params,
)
TRANSPOSED_PHASES = Route(
    "transposed_phases",
    _build_phases,
    (PHASES, SUM_SPLIT_K, PACK_TILES, STRIDED_COPY),
    why="outputs one stride apart are a dense convolution by the taps that reach them: tiles of its matrix product in "
    "shared memory, all phases in one launch, without scratch and with no product that is not needed",
    must=(FLOATS, FEW_PHASES, *FITS_SMALLEST),
    prefer=(ON_GPU,),
    params=_phase_params,
)
