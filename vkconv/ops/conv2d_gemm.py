"""Implicit GEMM for conv2d: matrix tiles in shared memory, for GPUs."""

import dataclasses
import math
from collections.abc import Mapping

from vkconv.core import align, ceil_div
from vkconv.device import Device
from vkconv.ops.activation import activation
from vkconv.ops.base import linear_groups, most_invocations
from vkconv.ops.conv2d_parts import binds, constants, push
from vkconv.ops.needs import F32, ON_GPU, invocations, shared_bytes
from vkconv.ops.packing import PACK_TILES, Packing
from vkconv.route import Call, Params, Route
from vkconv.shader import Dispatch, Program, Shader, read, write


@dataclasses.dataclass(frozen=True, slots=True)
class Tile:
    """Output channels x pixels of a workgroup, the depth of a slice, and channels x pixels of one invocation."""

    rows: int
    columns: int
    depth: int
    lane_rows: int
    lane_columns: int

    @property
    def local(self) -> int:
        return self.rows // self.lane_rows * (self.columns // self.lane_columns)

    @property
    def shared_bytes(self) -> int:
        return 4 * self.depth * (self.rows + self.columns)

    def fits(self, device: Device) -> bool:
        """Whether a workgroup of the device can hold it."""
        shared = device.limit("maxComputeSharedMemorySize")
        return self.local <= most_invocations(device) and self.shared_bytes <= shared


# By number: the parameter ``tile`` of the route. Every one keeps local a multiple of its columns, as the shader loads.
TILES: tuple[Tile, ...] = (
    Tile(128, 128, 8, 8, 8),
    Tile(128, 64, 8, 8, 8),
    Tile(64, 128, 8, 8, 8),
    Tile(64, 64, 16, 8, 8),
    Tile(64, 64, 16, 4, 4),
    Tile(32, 64, 16, 4, 4),
    Tile(64, 32, 16, 4, 4),
    Tile(32, 32, 16, 4, 4),
    Tile(128, 128, 16, 8, 8),
    Tile(64, 64, 16, 8, 4),
    Tile(128, 64, 16, 8, 4),
    Tile(32, 128, 16, 4, 8),
)
_SMALLEST = 7
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
# Workgroups that keep a GPU busy.
_ENOUGH = 256

GEMM = Shader("conv2d_gemm")
SUM_SPLITS = Shader("sum_splits")


def _blocks(call: Call, tile: Tile) -> int:
    n, c_out, oh, ow = call.shape("y")
    groups: int = call["groups"]
    return groups * ceil_div(c_out // groups, tile.rows) * ceil_div(n * oh * ow, tile.columns)


def _steps(call: Call, tile: Tile, linear: bool) -> int:
    c_in, kh, kw = call.shape("w")[1:]
    return ceil_div(c_in * kh * kw, tile.depth) if linear else kh * kw * ceil_div(c_in, tile.depth)


def _params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    fitting = [i for i, tile in enumerate(TILES) if tile.fits(device)]
    rule = [i for i in fitting if i <= _SMALLEST]
    best = next((i for i in rule if _blocks(call, TILES[i]) >= _ENOUGH), rule[-1])
    tile = TILES[best]
    c_in = call.shape("w")[1]
    linear = align(c_in, tile.depth) >= 1.15 * c_in
    wanted = _ENOUGH // _blocks(call, tile)
    splits = max(s for s in SPLITS if s == 1 or (s <= wanted and s * 8 <= _steps(call, tile, linear)))
    return {
        "tile": (best, *(i for i in fitting if i != best)),
        "linear": (int(linear), int(not linear)),
        "splits": (splits, *(s for s in SPLITS if s != splits)),
    }


def _build(call: Call, device: Device, params: Params) -> Program:
    tile, linear, splits = TILES[params["tile"]], bool(params["linear"]), params["splits"]
    _, c_out, oh, ow = call.shape("y")
    c_in, kh, kw = call.shape("w")[1:]
    groups: int = call["groups"]
    taps = kh * kw
    inner = (
        {"inner": c_in * taps, "inner_stride": 1} if linear else {"inner": c_in, "inner_stride": taps, "outer": taps}
    )
    packing = Packing(
        rows=c_out // groups,
        tile=tile.rows,
        row_stride=c_in * taps,
        outer_stride=1,
        inner_step=tile.depth,
        groups=groups,
        **inner,
    )
    sizes = (tile.rows, tile.columns, tile.depth, tile.lane_rows, tile.lane_columns, splits, linear, kh, kw)
    grid = linear_groups(splits * _blocks(call, tile) * tile.local, tile.local, device)
    target = "y" if splits == 1 else "parts"
    gemm = Dispatch(
        GEMM,
        binds(call, "packed", target),
        grid,
        (tile.local, 1, 1),
        push(call),
        (*constants(call), *sizes),
        tile.shared_bytes,
        _steps(call, tile, linear) + 1,
    )
    packed = {"packed": 4 * packing.size}
    if splits == 1:
        return Program((gemm,), (packing.dispatch("w", "packed", device),), packed)
    total = math.prod(call.shape("y"))
    add = Dispatch(
        SUM_SPLITS,
        (*read("parts", "b" if call.has("b") else "parts"), *write("y")),
        linear_groups(total, 128, device),
        (128, 1, 1),
        (total, c_out, oh * ow, float(call["act_a"]), float(call["act_b"])),
        (activation(call["act"]).id, call.has("b"), splits),
        loop_iterations=splits,
    )
    return Program((gemm, add), (packing.dispatch("w", "packed", device),), packed, {"parts": 4 * total * splits})


IMPLICIT_GEMM = Route(
    "implicit_gemm",
    _build,
    (GEMM, SUM_SPLITS, PACK_TILES),
    why="tiles of a matrix product in shared memory, the input gathered as they need it: each element that is loaded "
    "serves a tile of outputs, without an im2col buffer",
    must=(F32, invocations(TILES[_SMALLEST].local), shared_bytes(TILES[_SMALLEST].shared_bytes)),
    prefer=(ON_GPU,),
    params=_params,
)
