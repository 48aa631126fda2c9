"""The route of conv2d by cooperative matrices whose fragments, what lanes hold of matrices, are read straight into
registers: weights packed once in the order of fragments, the input from a copy with channels last."""

import dataclasses
import math

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, align, bytes_str, ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.once import once
from vkconv.ops.conv.common import buffers, push
from vkconv.ops.conv.conv2d import coopmat
from vkconv.ops.conv.conv2d.channels_last import (
    CHANNELS_LAST,
    CHANNELS_LAST_WORDS,
    ChannelsLast,
    can_copy,
    copied_bytes,
    word_of,
)
from vkconv.ops.conv.conv2d.coopmat import FILLS_MATRICES, StridedScatter, extents, less_than
from vkconv.ops.conv.conv2d.in_registers import WIDE_IN_HALVES
from vkconv.ops.conv.tiles import split_k
from vkconv.ops.core.base import defaults, divisor, first, over_workgroups
from vkconv.ops.core.requirements import INT32, ON_GPU, invocations, loop_iterations, shared_bytes
from vkconv.ops.kernels.coopmat import (
    EIGHT,
    FITS,
    FRAGMENT_TILES,
    FRAGMENTS,
    NEEDS,
    FragmentTile,
    Matrix,
    Product,
    blocks,
    estimated_us,
    matrix_of,
    split_by_rule,
    tiles_by_rule,
)
from vkconv.ops.kernels.epilogue import SPLIT_K_SLICES, Epilogue, finishing
from vkconv.ops.kernels.launch_costs import LaunchCosts
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route

CONVOLUTION = Shader(shaders.conv2d.CONV2D_FRAGMENT, DType.F16)
ORDER = Shader(shaders.conv2d.PACK_FRAGMENTS, DType.F16)
# Rows and depth, and invocations, of a workgroup of it.
_SIDE, _LANES = 64, 256
_SHARED_BYTES = 16 * _SIDE * (_SIDE // EIGHT + 1)

_COPY = Policy("conv2d.fragment_order", LaunchCosts)
_IN_RUNS = Policy("cooperative.in_runs", bool)
# The parameter ``fragment_order``: operands that lanes read as they hold them.
_NONE, _WEIGHTS, _BOTH = 0, 1, 2
# Of the second operand, of which pack_fragments.comp says what a lane holds.
_LANES_OF_RUNS, _MATRIX_OF_RUNS = 32, Matrix(16, 16, 16)


def product_of(call: Call, depth: int) -> Product:
    """The product that a convolution is, each of its taps padded to whole steps of so many products."""
    _, channels, kh, kw = call.shape("w")
    return Product(*extents(call), kh * kw * align(channels, depth), FRAGMENTS, call.elements)


def _step(device: Device) -> int:
    """Products of a step."""
    matrix = matrix_of(device)
    return matrix.k if matrix else EIGHT


def _copy(call: Call, device: Device) -> ChannelsLast:
    return ChannelsLast(call, _step(device) // EIGHT)


@dataclasses.dataclass(frozen=True, slots=True)
class _Convolution:
    """A convolution with values for the parameters of the route."""

    call: Call
    device: Device
    params: Params
    matrix: Matrix
    scatter: StridedScatter

    @property
    def _tile(self) -> FragmentTile:
        return FRAGMENT_TILES[self.params["tile"]]

    @property
    def _rows(self) -> int:
        """Of the weights of a group, up to whole tiles."""
        return align(extents(self.call)[0], self._tile.rows)

    @property
    def _steps(self) -> int:
        _, channels, kh, kw = self.call.shape("w")
        return kh * kw * ceil_div(channels, self.matrix.k)

    @property
    def slices(self) -> int:
        """Of the sum, which may have fewer steps than are asked for."""
        return min(int(self.params.get("split_k", 1)), max(self._steps, 1))

    @property
    def packed_size(self) -> int:
        """Elements of the weights as they are packed."""
        return int(self.call["groups"]) * self._rows * self._steps * self.matrix.k

    def pack(self) -> Dispatch:
        """The launch that packs the weights."""
        _, channels, kh, kw = self.call.shape("w")
        groups = int(self.call["groups"])
        tiles = groups * ceil_div(self._rows, _SIDE) * ceil_div(self._steps * self.matrix.k, _SIDE)
        sizes = {"rows": extents(self.call)[0], "padded_rows": self._rows, "channels": channels}
        return Dispatch(
            ORDER,
            {"w": "w", "y8": "packed"},
            *over_workgroups(tiles, _LANES, self.device),
            {**sizes, "kh": kh, "kw": kw, "groups": groups},
            {
                "FRAGMENT_ORDER": self.params["fragment_order"],
                **dict(zip(("MM", "MN", "MK"), dataclasses.astuple(self.matrix), strict=True)),
                "SUBGROUP": self.device.subgroup_size,
            },
            _SHARED_BYTES,
        )

    def product(self, e: Epilogue) -> Dispatch:
        """The launch that multiplies."""
        call, device, tile = self.call, self.device, self._tile
        copy, (oh, ow), (kh, kw) = _copy(call, device), call.shape("y")[2:], call.shape("w")[2:]
        return Dispatch(
            e.variant(CONVOLUTION),
            buffers(e, "packed", x="last"),
            *over_workgroups(self.slices * blocks(tile, *extents(call)), tile.local(device), device),
            {
                **push(call, e),
                **dict(zip(("last_h", "last_w", "last_sh", "last_sw"), (*copy.extents, *copy.strides), strict=True)),
                **divisor("plane", oh * ow),
                **divisor("row", ow),
                **divisor("vec8s", 1),
                **self.scatter.push,
            },
            {
                **e.constants,
                **tile.constants(device, True, False),
                **self.scatter.constants,
                "Y_WORD": word_of(call.shape("y")),
                "KH": kh,
                "KW": kw,
                "FRAGMENT_ORDER": self.params["fragment_order"],
                "STAGES": tile.stages,
                "SPLIT_K": self.slices,
            },
            tile.workgroup_bytes(device),
            self._steps,
        )


def in_fragment_order(call: Call, device: Device, params: Params, scatter: StridedScatter | None = None) -> Program:
    """The program of a convolution, which may scatter its results, without a residual."""
    matrix = matrix_of(device)
    assert matrix is not None
    made = _Convolution(call, device, params, matrix, scatter or StridedScatter())
    copy, e = _copy(call, device), Epilogue.of(call, device)
    steps, scratch = split_k(call, e, made.slices, device, made.product)
    program = Program(
        (copy.dispatch(device), *steps),
        (made.pack(),),
        {"packed": 4 * made.packed_size},
        # Scratch is counted in f32, though this has 16 bits.
        {"last": 2 * copy.nbytes, **scratch},
        elements=frozenset({"packed", "last"}),
    )
    return e.complete(program, call.shape("y"), device)


def _is_in_runs(device: Device) -> bool:
    """Whether it is known that lanes hold runs of four of a column, as pack_fragments.comp has them."""
    fits = matrix_of(device) == _MATRIX_OF_RUNS and device.subgroup_size == _LANES_OF_RUNS
    return fits and _IN_RUNS.of(device)


def _orders(device: Device) -> tuple[int, ...]:
    return (_BOTH, _WEIGHTS, _NONE) if _is_in_runs(device) else (_WEIGHTS, _NONE)


def _product(call: Call, device: Device) -> Product:
    return product_of(call, _step(device))


def whole_sums(call: Call, device: Device) -> Legal:
    """The parameters where sums are whole."""
    return {"tile": tiles_by_rule(_product(call, device), device), "fragment_order": _orders(device)}


def _params(call: Call, device: Device) -> Legal:
    def made() -> Legal:
        product = _product(call, device)
        tiles = tiles_by_rule(product, device)
        tile, slices = split_by_rule(product, SPLIT_K_SLICES, device, tiles)
        orders = _orders(device)
        return {"tile": first(tile, tiles), "fragment_order": orders, "split_k": first(slices, SPLIT_K_SLICES)}

    return once(("cooperative_fragment",), (call, device), made)


def copy_us(call: Call, device: Device) -> float:
    """Microseconds of the launch that copies the input."""
    return _COPY.of(device).of(copied_bytes(ChannelsLast(call)), device)


def _estimated_us(call: Call, device: Device, params: Params) -> float | None:
    if params["fragment_order"] != _BOTH:
        return None  # costs are of that alone
    us = estimated_us(_product(call, device), params["tile"], params.get("split_k", 1), device)
    return None if us is None else us + copy_us(call, device)


def default_us(call: Call, device: Device) -> float | None:
    """Microseconds of `COOPERATIVE_FRAGMENT` by the defaults of its parameters; None without costs, and where it is not
    known what lanes hold."""
    return _estimated_us(call, device, defaults(_params(call, device))) if _is_in_runs(device) else None


def _is_whole(device: Device) -> bool:
    """Whether a lane's share of a matrix is whole 8-wide vectors, of whole columns of the subgroup's, and matrices
    divide what a workgroup transposes."""
    matrix, lanes = matrix_of(device), device.subgroup_size
    if matrix is None:
        return False
    shares = matrix.m * matrix.k, matrix.k * matrix.n
    sides = dataclasses.astuple(matrix)
    whole = not any(share % (EIGHT * lanes) for share in shares) and lanes % (matrix.k // EIGHT) == 0
    return whole and not any(_SIDE % side for side in sides)


def _largest_bytes(call: Call, device: Device) -> int:
    """Of the weights as they are packed, with any tile, at two bytes an element."""
    rows, _, groups = extents(call)
    _, channels, *window = call.shape("w")
    depth = math.prod(window) * align(channels, _step(device))
    return 2 * groups * depth * max(align(rows, tile.rows) for tile in FRAGMENT_TILES.values())


SOME_TILE = Requirement(
    "a workgroup that holds a tile of whole matrices",
    lambda call, device: any(tile.fits(device) for tile in FRAGMENT_TILES.values()),
    FITS.actual,
)
WHOLE_WORDS = Requirement(
    f"matrices of which each lane has whole 8-wide vectors, with sides that divide {_SIDE}",
    lambda call, device: _is_whole(device),
    lambda call, device: f"{matrix_of(device)}, subgroups of {device.subgroup_size}",
)
WITHIN_RANGE = Requirement(
    "packed weights, and a copy of the input, that a storage buffer holds",
    lambda call, device: (
        _largest_bytes(call, device) <= device.limit("maxStorageBufferRange") and can_copy(_copy(call, device), device)
    ),
    lambda call, device: (
        f"{bytes_str(_largest_bytes(call, device))} and {bytes_str(_copy(call, device).nbytes)}, "
        f"{bytes_str(device.limit('maxStorageBufferRange'))} is the most"
    ),
)
IN_RUNS = Requirement(
    "a device of which it is known what its lanes hold of a matrix",
    lambda call, device: _is_in_runs(device),
    lambda call, device: f"{matrix_of(device)}, subgroups of {device.subgroup_size}",
)
LESS_THAN_COOPERATIVE = less_than(default_us, "with the copy", {"cooperative": coopmat.default_us})

COOPERATIVE_FRAGMENT = Route(
    "cooperative_fragment",
    in_fragment_order,
    finishing(CONVOLUTION, ORDER, CHANNELS_LAST, CHANNELS_LAST_WORDS),
    why="both operands of the product go from memory straight into registers, steps ahead, without barriers: weights "
    "packed as a subgroup holds them, and a copy of the input with channels last, of which the taps of a window read "
    "the same pixels again",
    must=(
        *NEEDS,
        SOME_TILE,
        WHOLE_WORDS,
        invocations(_LANES),
        shared_bytes(_SHARED_BYTES),
        INT32,
        WITHIN_RANGE,
        loop_iterations(lambda call, device: math.prod(call.shape("w")[1:])),
    ),
    prefer=(ON_GPU, FILLS_MATRICES, WIDE_IN_HALVES, IN_RUNS, LESS_THAN_COOPERATIVE),
    params=_params,
    estimated_us=_estimated_us,
)
