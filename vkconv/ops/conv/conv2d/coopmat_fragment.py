"""The route of 1x1 conv2d by cooperative matrices in fragment order, in which subgroups hold them: a launch copies the
input into that order, weights are packed in it once, and the product loads both straight into registers."""

import dataclasses
import math
from collections.abc import Mapping

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, align, bytes_str, ceil_div
from vkconv.cost import Turns, compute_units, launch_us
from vkconv.device import Device, target_of
from vkconv.kernel import Shader
from vkconv.ops.conv.common import KERNEL_1X1, buffers, is_matrix, push
from vkconv.ops.conv.conv2d.coopmat import FILLS_MATRICES, StridedScatter, copies, divisor, extents, word_of
from vkconv.ops.core.base import first, over_workgroups
from vkconv.ops.core.requirements import INT32, ON_GPU, invocations, loop_iterations, shared_bytes
from vkconv.ops.kernels.coopmat import EIGHT, FITS, NEEDS, CooperativeTile, Matrix, blocks, matrix_of
from vkconv.ops.kernels.epilogue import Epilogue, finishing
from vkconv.ops.kernels.gemm_tile import by_name
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.route import Params, Requirement, Route

CONVOLUTION = Shader(shaders.conv2d.CONV2D_FRAGMENT, DType.F16)
ORDER = Shader(shaders.conv2d.PACK_FRAGMENTS, DType.F16)
# Lines and depth, and invocations, of a workgroup of it.
_SIDE, _LANES = 64, 256
_OPERAND_PUSH: tuple[str, ...] = ("lines", "padded_lines", "depth", "padded_depth", "groups")
_OPERAND_PUSH += ("image_step", "group_step", "depth_step", "h", "w", "oh", "ow", "sh", "sw", "pt", "pl")
_SHARED_BYTES = 16 * _SIDE * (_SIDE // EIGHT + 1)


# The parameter ``tile``. The depth is that of the shared memory which sums take on their way out.
TILES: Mapping[str, CooperativeTile] = by_name(
    CooperativeTile(128, 128, 32, 64, 64),
    CooperativeTile(128, 256, 32, 64, 64),
    CooperativeTile(256, 128, 32, 64, 64),
    CooperativeTile(64, 256, 32, 64, 64),
    CooperativeTile(128, 96, 32, 64, 48),
    CooperativeTile(128, 64, 32, 64, 32),
    CooperativeTile(64, 64, 32, 32, 32),
    CooperativeTile(32, 64, 32, 16, 32),
    CooperativeTile(32, 32, 32, 16, 16),
    CooperativeTile(16, 16, 32, 16, 16),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Costs:
    """By tile: products that a compute unit makes in a time, beside the other tiles, workgroups that it holds, and how
    many of them fewer take no less time than. The route is taken from ``least`` output channels and products on."""

    costs: Mapping[str, tuple[float, ...]]
    least: int

    def of(self, name: str) -> Turns:
        """The cost of the tile of that name."""
        tile, (rate, *more) = TILES[name], self.costs[name]
        resident, least = more or (1, 1.0)
        return Turns(tile.rows * tile.columns / rate, int(resident), least)


_COSTS = Policy("cooperative.fragment_tiles", Costs)


@dataclasses.dataclass(frozen=True, slots=True)
class FragmentOperand:
    """A GEMM operand in fragment order. ``lines`` are rows of the weights or pixels of the output, ``depth`` what is
    summed over, each of a group and with what it is padded to. ``strides``: from image to image, group to group and
    channel to channel. ``planes``: rows and columns of the input, and of lines. ``steps``: stride and padding of
    lines in the input."""

    lines: int
    padded_lines: int
    depth: int
    padded_depth: int
    groups: int
    strides: tuple[int, int, int]
    planes: tuple[int, int, int, int] = (1, 1, 1, 1)
    steps: tuple[int, int, int, int] = (1, 1, 0, 0)

    @property
    def size(self) -> int:
        """Elements."""
        return self.groups * self.padded_lines * self.padded_depth

    def dispatch(
        self, source: str, target: str, device: Device, matrix: Matrix, first: bool, ordered: bool
    ) -> Dispatch:
        """The launch that makes it of ``source``, as the ``first`` operand of the product or the second."""
        sizes = self.lines, self.padded_lines, self.depth, self.padded_depth, self.groups
        words = dict(zip(_OPERAND_PUSH, (*sizes, *self.strides, *self.planes, *self.steps), strict=True))
        groups = self.groups * ceil_div(self.padded_lines, _SIDE) * ceil_div(self.padded_depth, _SIDE)
        return Dispatch(
            ORDER,
            {"x": source, "y8": target},
            *over_workgroups(groups, _LANES, device),
            {**words, **divisor("w", self.planes[3]), **divisor("h", self.planes[2])},
            {
                "FIRST": first,
                "FRAGMENT_ORDER": ordered,
                "MM": matrix.m,
                "MN": matrix.n,
                "MK": matrix.k,
                "SUBGROUP": device.subgroup_size,
            },
            _SHARED_BYTES,
        )


def _padded_depth(call: Call, matrix: Matrix) -> int:
    """The product makes two steps at a time."""
    return align(call.shape("w")[1], 2 * matrix.k)


def _weights(call: Call, tile: CooperativeTile, matrix: Matrix) -> FragmentOperand:
    rows, _, groups = extents(call)
    depth = call.shape("w")[1]
    strides = depth, rows * depth, 1
    return FragmentOperand(rows, align(rows, tile.rows), depth, _padded_depth(call, matrix), groups, strides)


def _pixels(call: Call, columns: int, matrix: Matrix) -> FragmentOperand:
    """The input, where a tile has so many columns."""
    _, lines, groups = extents(call)
    (_, c_in, h, w), (_, _, oh, ow), depth = call.shape("x"), call.shape("y"), call.shape("w")[1]
    (sh, sw), (top, left) = call["stride"], call["padding"][:2]
    return FragmentOperand(
        lines,
        align(lines, columns),
        depth,
        _padded_depth(call, matrix),
        groups,
        (c_in * h * w, depth * h * w, h * w),
        (h, w, oh, ow),
        (sh, sw, top, left),
    )


def tiles_by_rule(
    rows: int, columns: int, groups: int, device: Device, tiles: Mapping[str, CooperativeTile] = TILES
) -> tuple[str, ...]:
    """The tiles that a device can hold, the one first that should take the least time: each compute unit makes its
    tiles one after the other, or so many at a time."""

    def us(name: str) -> float:
        return launch_us(_COSTS.of(device).of(name), blocks(tiles[name], rows, columns, groups), 1, target_of(device))

    fitting = [name for name, tile in tiles.items() if tile.fits(device)]
    return first(min(fitting, key=us), fitting)


def in_fragment_order(call: Call, device: Device, params: Params, scatter: StridedScatter | None = None) -> Program:
    """The program of a 1x1 convolution, which may scatter its results, without a residual."""
    tile, matrix = TILES[params["tile"]], matrix_of(device)
    assert matrix is not None
    in_order, local = bool(params["fragment_order"]), tile.local(device)
    weights, pixels = _weights(call, tile, matrix), _pixels(call, tile.columns, matrix)
    (oh, ow), e, scatter = call.shape("y")[2:], Epilogue.of(call, device), scatter or StridedScatter()
    step = Dispatch(
        e.variant(CONVOLUTION),
        buffers(e, "packed", x="fragments"),
        *over_workgroups(blocks(tile, *extents(call)), local, device),
        {
            **push(call, e),
            **dict.fromkeys(("last_h", "last_w", "last_sh", "last_sw"), 0),  # there is no copy with channels last
            **divisor("plane", oh * ow),
            **divisor("row", ow),
            **divisor("vec8s", 1),
            **scatter.push,
        },
        {
            **e.constants,
            **tile.constants(device, True, False),
            **scatter.constants,
            "Y_WORD": word_of(call.shape("y")),
            "FRAGMENT_ORDER": in_order,
        },
        tile.workgroup_bytes(device),
        pixels.padded_depth // matrix.k,
    )
    made = Program(
        (pixels.dispatch("x", "fragments", device, matrix, False, in_order), step),
        (weights.dispatch("w", "packed", device, matrix, True, in_order),),
        {"packed": 4 * weights.size},
        {"fragments": 4 * pixels.size},
        elements=frozenset({"packed", "fragments"}),
    )
    return e.complete(made, call.shape("y"), device)


_COLUMNS = max(tile.columns for tile in TILES.values())


def _operand_bytes(call: Call, device: Device) -> int:
    """Of the larger operand in fragment order, with any tile, at two bytes an element."""
    matrix = matrix_of(device)
    if matrix is None:
        return 0
    operands = *(_weights(call, tile, matrix) for tile in TILES.values()), _pixels(call, _COLUMNS, matrix)
    return 2 * max(operand.size for operand in operands)


def _is_whole(device: Device) -> bool:
    """Whether a lane's share of a matrix is whole 8-wide vectors, and matrices divide what a workgroup transposes."""
    matrix = matrix_of(device)
    if matrix is None:
        return False
    shares = matrix.m * matrix.k, matrix.k * matrix.n
    sides = dataclasses.astuple(matrix)
    return not any(share % (EIGHT * device.subgroup_size) for share in shares) and not any(_SIDE % s for s in sides)


SOME_TILE = Requirement(
    "a workgroup that holds a tile of whole matrices",
    lambda call, device: any(tile.fits(device) for tile in TILES.values()),
    FITS.actual,
)
WHOLE_WORDS = Requirement(
    f"matrices of which each lane has whole 8-wide vectors, with sides that divide {_SIDE}",
    lambda call, device: _is_whole(device),
    lambda call, device: f"{matrix_of(device)}, subgroups of {device.subgroup_size}",
)
WITHIN_RANGE = Requirement(
    "operands in fragment order within a storage buffer",
    lambda call, device: _operand_bytes(call, device) <= device.limit("maxStorageBufferRange"),
    lambda call, device: (
        f"{bytes_str(_operand_bytes(call, device))}, {bytes_str(device.limit('maxStorageBufferRange'))} is the most"
    ),
)
COPIED = Requirement(
    "an input that is not read as it lies by cooperative",
    lambda call, device: not is_matrix(call) or bool(copies(call, device)[0]),
    lambda call, device: f"planes of {math.prod(call.shape('x')[2:])} elements, {extents(call)[0]} output channels",
)
OUTWEIGHS_COPY = Requirement(
    "as many output channels in a group, and products of a sum, as outweigh the copy",
    lambda call, device: min(extents(call)[0], call.shape("w")[1]) >= _COSTS.of(device).least,
    lambda call, device: (
        f"{extents(call)[0]} channels, {call.shape('w')[1]} products, at least {_COSTS.of(device).least} "
        f"({_COSTS.said(device)})"
    ),
)
# With fewer, tiles in shared memory are faster, or split-K.
_FULL = TILES["64x64x32"]


def _blocks(call: Call) -> int:
    return blocks(_FULL, *extents(call))


FILLS_UNITS = Requirement(
    f"tiles of {_FULL.rows}x{_FULL.columns} for all compute units",
    lambda call, device: _blocks(call) >= compute_units(device),
    lambda call, device: f"{_blocks(call)} tiles, {compute_units(device)} compute units",
)

COOPERATIVE_FRAGMENT = Route(
    "cooperative_fragment",
    in_fragment_order,
    finishing(CONVOLUTION, ORDER),
    why="an input that has to be copied is copied into the order in which a subgroup holds fragments, weights too: the "
    "product reads both straight into registers, a step ahead, without shared memory and barriers",
    must=(
        *NEEDS,
        KERNEL_1X1,
        SOME_TILE,
        WHOLE_WORDS,
        invocations(_LANES),
        shared_bytes(_SHARED_BYTES),
        INT32,
        WITHIN_RANGE,
        loop_iterations(lambda call, device: call.shape("w")[1]),
    ),
    prefer=(ON_GPU, COPIED, FILLS_MATRICES, OUTWEIGHS_COPY, FILLS_UNITS),
    params=lambda call, device: {"tile": tiles_by_rule(*extents(call), device), "fragment_order": (1, 0)},
)
