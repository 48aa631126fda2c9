"""What gemm_reduce and conv_reduce share: how a product is reduced before it is stored, and the two steps in turn.

A product is a matrix for each batch, whose columns lie in segments that are each reduced to one number for every row:
the columns of a matrix product are one segment, the pixels of each image of a convolution are one. A workgroup reduces
its tile, which makes a part for each row and each segment that the tile touches. A second launch combines the parts of
an output in their order, or the workgroups add them to the output by atomic operations.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np

from vkconv import shaders
from vkconv.call import HALVES, Call
from vkconv.core import Array, GraphError, bytes_str, ceil_div, did_you_mean
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core.base import F64, Attr, Op, linear_groups
from vkconv.ops.core.requirements import FLOATS, MOST_INT, float_atomics, within_scratch
from vkconv.ops.core.tolerance import (
    largest,
    of_error,
    rounding_of_storing,
    rounding_of_sum,
    shows_addends,
)
from vkconv.ops.kernels.epilogue import rounding_of_products
from vkconv.ops.kernels.zero_insertion import FILL
from vkconv.ops.reduce.op import REDUCE
from vkconv.program import Composite, Dispatch, Inner, Program, Word
from vkconv.route import Params, Requirement, Route, Sub, choose

# By name: FUNCTION of shaders/include/reduced.glsl and its identity as u32 bits.
_ADD, _MAX, _MIN = (0, 0x00000000), (1, 0xFF800000), (2, 0x7F800000)
FUNCTIONS: Mapping[str, tuple[int, int]] = {"sum": _ADD, "mean": _ADD, "max": _MAX, "min": _MIN}
_SUMS = ("sum", "mean")
# The route that runs the two steps in turn.
UNFUSED = "unfused"
REDUCE_ATTRS = (Attr("op", "op", str, "sum"), Attr("keepdims", "keep", bool, False))

COMBINE = Shader(shaders.fused.GEMM_REDUCE_COMBINE)
_REDUCE, _CAS, _NATIVE = ("REDUCE", ""), ("ATOMIC_CAS", ""), ("ATOMIC_FLOAT", "")
# Outputs of a workgroup that combines parts, and from how many parts of an output on so many lanes share one. A CPU
# driver has no use for lanes that meet in shared memory.
_OUTPUTS, _LANES, _MANY_PARTS = {"cpu": 8}, {"cpu": 1}, 16
_GPU_OUTPUTS, _GPU_LANES, _GPU_OUTPUTS_SHARED = 64, 8, 16


@dataclasses.dataclass(frozen=True, slots=True)
class Reduction:
    """``batches`` of ``rows`` x (``segments`` of ``extent`` columns each, padding included), cut into tiles of
    ``block`` columns. ``count`` elements are reduced to one."""

    batches: int
    rows: int
    segments: int
    extent: int
    block: int
    count: int

    @property
    def tiles(self) -> int:
        """Of a batch, along its columns."""
        return ceil_div(self.segments * self.extent, self.block)

    @property
    def slots(self) -> int:
        """The most segments that a tile touches."""
        step = math.gcd(self.extent, self.block)
        return min(self.segments, ceil_div(self.block - step, self.extent) + 1)

    @property
    def uncut(self) -> bool:
        """Whether no segment lies in several tiles."""
        return self.tiles == 1 or self.block % self.extent == 0

    @property
    def most_parts(self) -> int:
        """The most tiles that a segment lies in."""
        return 1 if self.uncut else min(self.tiles, ceil_div(self.extent, self.block) + 1)

    @property
    def parts(self) -> int:
        """Numbers in scratch."""
        return 0 if self.uncut else self.batches * self.tiles * self.slots * self.rows

    @property
    def outputs(self) -> int:
        return self.batches * self.segments * self.rows


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """What a launch that makes parts does with them: the buffer that takes them, the variant of the shader, its
    specialization constants and what results are divided by."""

    target: str
    defines: tuple[tuple[str, str], ...]
    constants: Mapping[str, Word]
    divisor: float


Launch = Callable[[Ending], Dispatch]


def variants(shader: Shader) -> tuple[Shader, Shader, Shader]:
    """A shader that stores its parts, and those that add them by atomics: by compare-and-swap, and the device's own."""
    return (
        dataclasses.replace(shader, defines=(_REDUCE,)),
        dataclasses.replace(shader, defines=(_REDUCE, _CAS)),
        dataclasses.replace(shader, defines=(_REDUCE, _NATIVE)),
    )


def reducing(
    made: Dispatch,
    end: Ending,
    *,
    push: Mapping[str, Word] | None = None,
    constants: Mapping[str, Word] | None = None,
) -> Dispatch:
    """The launch of a product to y by the variant of its shader that reduces it, with what that takes besides."""
    return dataclasses.replace(
        made,
        shader=dataclasses.replace(made.shader, defines=end.defines),
        buffers={**made.buffers, "y": end.target},
        push={**made.push, **(push or {}), "divisor": end.divisor},
        constants={**made.constants, **end.constants, **(constants or {})},
    )


def _reducing_by(function: int, to_parts: bool) -> Mapping[str, Word]:
    return {"FUNCTION": function, "TO_PARTS": to_parts}


def _divisor(call: Call, r: Reduction) -> float:
    return float(r.count) if call["op"] == "mean" else 1.0


def by_parts(call: Call, r: Reduction, launch: Launch, device: Device) -> Program:
    """The parts of all tiles to scratch, then combined in their order; one launch where no segment is cut."""
    function = FUNCTIONS[call["op"]][0]
    if r.uncut:
        return Program((launch(Ending("y", (_REDUCE,), _reducing_by(function, False), _divisor(call, r))),))
    made = launch(Ending("parts", (_REDUCE,), _reducing_by(function, True), 1.0))
    lanes = _LANES.get(device.kind, _GPU_LANES) if r.most_parts >= _MANY_PARTS else 1
    outputs = _GPU_OUTPUTS_SHARED if lanes > 1 else _OUTPUTS.get(device.kind, _GPU_OUTPUTS)
    sizes = {"total": r.outputs, "rows": r.rows, "segments": r.segments, "extent": r.extent}
    tiles = {"block": r.block, "tiles": r.tiles, "slots": r.slots}
    combine = Dispatch(
        COMBINE,
        {"parts": "parts", "y": "y"},
        linear_groups(ceil_div(r.outputs, outputs), 1, device),
        (lanes * outputs, 1, 1),
        {**sizes, **tiles, "divisor": _divisor(call, r)},
        {"FUNCTION": function, "LANES": lanes, "OUTPUTS": outputs},
        4 * lanes * outputs,
        r.most_parts,
    )
    return Program((made, combine), scratch={"parts": 4 * r.parts})


def by_atomics(call: Call, r: Reduction, launch: Launch, device: Device, native: bool) -> Program:
    """The identity everywhere, then the part of every tile onto it."""
    function, identity = FUNCTIONS[call["op"]]
    push = {"total": r.outputs, "value": identity}
    fill = Dispatch(FILL, {"y": "y"}, linear_groups(r.outputs, 64, device), (64, 1, 1), push)
    ending = Ending("y", (_REDUCE, _NATIVE if native else _CAS), _reducing_by(function, False), _divisor(call, r))
    return Program((fill, launch(ending)))


def native_atomics(call: Call, device: Device) -> tuple[int, ...]:
    """The parameter ``native``: whether floats are added by the device's own atomics (1) or by compare-and-swap (0). A
    maximum or minimum is one of integers, which every device has."""
    return (1, 0) if float_atomics(device) and call["op"] in _SUMS else (0,)


Reduced = Callable[[Call, Device], Reduction]


def parts_within_scratch(of: Reduced) -> Requirement:
    """The parts of a call, by the default of its parameters, within the budget."""
    return within_scratch(lambda call, device: 4 * of(call, device).parts, "parts")


def parts_beyond_scratch(of: Reduced) -> Requirement:
    """The other way round."""
    need = parts_within_scratch(of)
    return Requirement(
        "parts beyond the device's budget of scratch: within it they are stored, and combined in a fixed order",
        lambda call, device: not need.test(call, device),
        need.actual,
    )


def columns_in_32_bits(of: Reduced) -> Requirement:
    """Columns and tiles whose numbers a shader can hold."""

    def most(call: Call, device: Device) -> int:
        r = of(call, device)
        return max(r.segments * r.extent + r.block, r.batches * r.tiles * r.rows)

    return Requirement(
        f"numbers of columns and tiles up to {MOST_INT}",
        lambda call, device: most(call, device) <= MOST_INT,
        lambda call, device: str(most(call, device)),
    )


def taken_alone(first: Op, what: str, product: Callable[[Call], Call], route: str) -> Requirement:
    """The op of the first step alone would take the route whose tiles are reduced."""

    def taken(call: Call, device: Device) -> str:
        return choose(first.routes, product(call), device).route.name

    return Requirement(
        f"a {what} that {first.name} would compute by its route {route}",
        lambda call, device: taken(call, device) == route,
        taken,
    )


def parts_note(call: Call, r: Reduction) -> str:
    """What a route by parts comes to."""
    saved = f"{bytes_str(8 * r.outputs * r.count)} less to write and read"
    if r.uncut:
        return f"each output from one tile of {r.block} columns, {saved}"
    return f"up to {r.most_parts} tiles of {r.block} columns for an output, {bytes_str(4 * r.parts)} scratch, {saved}"


def atomic_note(call: Call, params: Params) -> str:
    """What a route by atomics comes to."""
    if call["op"] not in _SUMS:
        return "integer atomics in the order of floats: the same each time"
    return f"{'float atomics' if params['native'] else 'compare-and-swap'}; not deterministic"


# ---- the two steps in turn


def reduce_call(call: Call, full: TensorSpec, axes: tuple[int, ...]) -> Call:
    """The second step: the reduction of the first one's result."""
    return REDUCE.call({"x": full}, {"op": call["op"], "axes": axes, "keepdims": call["keepdims"]})


# What the second step runs must repeat.
_REDUCE_ROUTES = tuple(route for route in REDUCE.routes if route.deterministic)


def in_turn(first: Op, steps: Callable[[Call], tuple[Call, Call]], why: str) -> Route:
    """The route that runs a product into scratch, in the call's own type, and reduces that."""
    products = tuple(route for route in first.routes if route.chain is None)

    def inner(call: Call, device: Device, params: Params) -> Mapping[str, Sub]:
        product, reduction = steps(call)
        return {first.name: Sub(product, products), "reduce": Sub(reduction, _REDUCE_ROUTES)}

    def program(call: Call, device: Device, params: Params) -> Composite:
        made = Inner(first.name, {"y": "full"}), Inner("reduce", {"x": "full"})
        return Composite(made, scratch={"full": steps(call)[0].outputs["y"].nbytes}, elements=frozenset({"full"}))

    def note(call: Call, device: Device, params: Params) -> str:
        return f"{bytes_str(steps(call)[0].outputs['y'].nbytes)} of scratch between the two"

    shaders = dict.fromkeys(s for route in (*products, *_REDUCE_ROUTES) for s in route.shaders)
    return Route(UNFUSED, program, tuple(shaders), why, must=(FLOATS,), inner=inner, note=note)


# ---- definitions

_DEFINITIONS: Mapping[str, Callable[[F64, tuple[int, ...]], F64]] = {
    "sum": lambda x, axes: np.sum(x, axis=axes),
    "mean": lambda x, axes: np.mean(x, axis=axes),
    "max": lambda x, axes: np.max(x, axis=axes),
    "min": lambda x, axes: np.min(x, axis=axes),
}


def check_function(op: str, name: str) -> None:
    """GraphError where there is no such function."""
    if name not in FUNCTIONS:
        raise GraphError(f"{op}: there is no op={name!r}{did_you_mean(name, FUNCTIONS)}; one of {', '.join(FUNCTIONS)}")


def reduced(call: Call, full: F64, axes: tuple[int, ...]) -> F64:
    """A result (float64) reduced by definition, in the shape of the call's output."""
    with np.errstate(all="ignore"):
        result = _DEFINITIONS[call["op"]](full, axes)
    return np.asarray(result, np.float64).reshape(call.shape("y"))


def terms(call: Call, each: int, count: int) -> int:
    """Products and addends of an output: those of each of ``count`` results, which are then added or compared."""
    return each + (count if call["op"] in _SUMS else 0)


def magnitude(
    first: Op, product: Call, axes: tuple[int, ...], call: Call, arrays: Mapping[str, Array | None], reference: F64
) -> F64:
    """What the rounding of every output is relative to: the largest of what is added, as if nothing cancelled, or the
    largest of what is compared; or what the products may be off by, added up or compared, where they cancelled.

    A call of 16-bit floats may round each product p to its type before it is reduced, as the two nodes would: to
    p (1 + d) with |d| <= u, u half a unit of the type. A sum of these is off by the sum of p d, at most u times the sum
    of |p|, whatever cancels, and a mean by as much over the count; storing it adds u times its own size. Nothing
    makes the d of a row independent: products that are alike round alike. The maximum of rounded numbers is the rounded
    maximum, which is stored as it is: one rounding, as without the step between.
    """
    full, each = full_result(first, product, arrays), first.terms(product)
    size, count, summed = np.abs(full), full.size // max(1, reference.size), call["op"] in _SUMS
    every, out = terms(call, each, count), call.outputs["y"].dtype
    rounds_between = summed and out in HALVES
    with np.errstate(all="ignore"):
        sizes = reduced(call, size, axes) if summed else np.full(reference.shape, largest(full).max(initial=0.0))
        most = largest(sizes)
        if not shows_addends(full):
            products = rounding_of_products(first.reference, each, product, arrays)
            if summed:
                error = reduced(call, products, axes) + rounding_of_sum(sizes, count)
            else:
                error = np.max(products, axis=axes).reshape(reference.shape)
        elif rounds_between:
            error = rounding_of_sum(most, every)
        else:
            return most
        if rounds_between:
            error = error + reduced(call, rounding_of_storing(full, out), axes)
    return np.asarray(np.fmax(most, of_error(call, reference, error, every)))


def full_result(first: Op, product: Call, arrays: Mapping[str, Array | None]) -> F64:
    """The result of the first step in float64."""
    return np.asarray(first.reference(product, arrays)[0], np.float64)
