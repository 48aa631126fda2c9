"""The route of 1x1 conv2d by cooperative matrices in fragment order, in which subgroups hold them: a launch copies the
input into that order, weights are packed in it once, and the product loads both straight into registers."""

import dataclasses
from collections.abc import Mapping

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, align, bytes_str, ceil_div
from vkconv.device import Device, target_of
from vkconv.kernel import Shader
from vkconv.ops.conv.common import KERNEL_1X1, buffers, push
from vkconv.ops.conv.conv2d.channels_last import word_of
from vkconv.ops.conv.conv2d.coopmat import FILLS_MATRICES, StridedScatter, extents, less_than_cooperative
from vkconv.ops.core.base import divisor, first, over_workgroups
from vkconv.ops.core.requirements import INT32, ON_GPU, invocations, loop_iterations, shared_bytes
from vkconv.ops.kernels.coopmat import EIGHT, FITS, NEEDS, CooperativeTile, Matrix, blocks, matrix_of
from vkconv.ops.kernels.epilogue import Epilogue, finishing
from vkconv.ops.kernels.gemm_tile import by_name
from vkconv.ops.kernels.launch_costs import LaunchCosts
from vkconv.ops.kernels.tile_costs import TileCosts, Work
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.requirement import Requirement
from vkconv.route import Params, Route

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


_COSTS = Policy("cooperative.fragment_tiles", TileCosts)
_COPY = Policy("conv2d.fragment_order", LaunchCosts)


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


def work(call: Call, name: str) -> Work:
    """What the tile of that name makes of a 1x1 convolution."""
    (rows, columns, groups), tile = extents(call), TILES[name]
    k_tiles, outputs = ceil_div(call.shape("w")[1], tile.depth), rows * columns * groups
    return Work(blocks(tile, rows, columns, groups), k_tiles, outputs, "", tile.products, 2 * call.elements)


def copied_bytes(call: Call) -> int:
    """What the launch reads and writes that copies the input into fragment order."""
    _, columns, groups = extents(call)
    return call.specs["x"].nbytes // int(call["stride"][0]) + 2 * columns * groups * call.shape("w")[1]


def copy_us(call: Call, device: Device) -> float:
    """Microseconds of that launch."""
    return _COPY.of(device).of(copied_bytes(call), device)


def product_us(call: Call, name: str, device: Device) -> float:
    """Microseconds of the product by the tile of that name, which has costs."""
    return _COSTS.of(device).us(name, work(call, name), 1, target_of(device))


def tiles_by_rule(call: Call, device: Device) -> tuple[str, ...]:
    """The tiles that a device can hold, the one first that should take the least time of those with costs."""
    fitting = [name for name, tile in TILES.items() if tile.fits(device)]
    known = [name for name in fitting if name in _COSTS.of(device).costs]
    return first(min(known, key=lambda name: product_us(call, name, device), default=fitting[0]), fitting)


def _estimated_us(call: Call, device: Device, params: Params) -> float | None:
    if params["tile"] not in _COSTS.of(device).costs:
        return None
    return product_us(call, params["tile"], device) + copy_us(call, device)


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


def _default_us(call: Call, device: Device) -> float | None:
    return _estimated_us(call, device, {"tile": tiles_by_rule(call, device)[0]})


LESS_THAN_COOPERATIVE = less_than_cooperative(_default_us, "with the copy")

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
    prefer=(ON_GPU, FILLS_MATRICES, LESS_THAN_COOPERATIVE),
    params=lambda call, device: {"tile": tiles_by_rule(call, device), "fragment_order": (1, 0)},
    estimated_us=_estimated_us,
)
