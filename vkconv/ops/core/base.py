"""What an op is: operands, attributes, shapes, a float64 reference, routes and cases, in one value.

An op lives in one module of this package, which makes an `Op` and nothing else knows the op. A call has one
text form, used as CLI argument, test id, table row and JSON key::

    conv2d:x=1x64x56x56,w=128x64x3x3,p=1x1x1x1,dtype=f32
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from vkconv.call import Call
from vkconv.core import MAX_RANK, Array, GraphError, UsageError, ceil_div, did_you_mean, shape_problem, shape_str
from vkconv.device import Device
from vkconv.graph.ir import AttrValue, TensorSpec
from vkconv.ops.core.published import Rules
from vkconv.program import Argument
from vkconv.route import Legal, Route

Specs = Mapping[str, TensorSpec | None]
Attrs = dict[str, AttrValue]
Resolved = tuple[Attrs, tuple[TensorSpec | None, ...]]
"""Canonical attributes, and the specs of the outputs, None for one that this call does not make."""
Arrays = Mapping[str, Array | None]
"""Operands by name; absent optional ones are None."""
Outputs = Sequence[Array]
F64 = npt.NDArray[np.float64]
Magnitude = Callable[[Call, Arrays, F64], F64]


@dataclasses.dataclass(frozen=True, slots=True)
class Operand:
    """A tensor input. ``host`` ones (shapes, axes, pads) are folded into the attribute of the same name when
    the graph is bound, and never reach the device. ``variadic`` takes all remaining inputs (concat).
    ``partial`` ones are read only where an element reaches the output (slice, gather)."""

    name: str
    optional: bool = False
    host: bool = False
    variadic: bool = False
    partial: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Attr:
    """An attribute: full name, short key for call strings, type and default (None: required)."""

    name: str
    key: str
    type: type[int] | type[float] | type[str] | type[bool] | type[tuple[int, ...]] | type[tuple[float, ...]]
    default: AttrValue | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Sums:
    """How a result is made of sums of products, by definition in float64: ``products(call, arrays)`` adds them up, over
    the operands ``names`` alone, and ``finish(call, arrays, sums)`` makes the output of that, element by element."""

    names: tuple[str, str]
    products: Callable[[Call, Mapping[str, F64]], F64]
    finish: Callable[[Call, Arrays, F64], F64]

    def reference(self, call: Call, arrays: Arrays) -> Outputs:
        """The output: `Op.reference` of such an op."""
        factors = {name: np.asarray(arrays[name], np.float64) for name in self.names}
        return [self.finish(call, arrays, self.products(call, factors))]


@dataclasses.dataclass(frozen=True)
class Op:
    """One operator.

    ``resolve(specs, attrs)`` checks the call and returns the canonical attributes (auto padding made explicit,
    negative axes counted from the front) and the output specs; it raises GraphError with the values at fault.
    ``reference(call, arrays)`` computes the outputs by definition: float operands come as float64, integers
    as they are, absent optional ones as None; outputs in any float precision, exact for integers.
    ``terms(call)`` is the number of products or addends accumulated into one output element, in f32 or, with
    ``sums_in_output``, rounded to the output's type each time; ``flops(call)`` the arithmetic by the field's convention
    (2 per multiply-add). ``magnitude(call, arrays, reference)`` is what the rounding of an output element is relative
    to, where that is neither the element itself (one term) nor the largest result (several): what was subtracted on the
    way to a smaller one; ``magnitudes`` are those of outputs that have another than the first. ``alias`` marks ops
    whose output is the input's bytes under another shape. An op with neither routes nor alias exists only on the host:
    it must fold away when the graph is bound. ``fold_from_specs(call)`` gives the outputs of an op whose value follows
    from the operand shapes alone (shape, size), also where the operand is no constant. With ``variadic_outputs`` the
    one output name is numbered from 0, as variadic operands are (split: y0, y1, ...). ``check_constants(call, arrays)``
    raises GraphError for values, of the operands that are constant or given to a run, which no device would refuse (an
    index out of range). ``sums`` is what ops with routes of f16 sums have. ``parameters`` are words that are easily
    taken for attributes, with the parameters of routes that they mean. ``published`` are the rules of other systems by
    their names. With ``counts`` the last output says how much of the others is meant, which only a run on the device
    finds out.
    """

    name: str
    operands: tuple[Operand, ...]
    resolve: Callable[[Specs, Attrs], Resolved]
    reference: Callable[[Call, Arrays], Outputs]
    outputs: tuple[str, ...] = ("y",)
    attrs: tuple[Attr, ...] = ()
    routes: tuple[Route, ...] = ()
    terms: Callable[[Call], int] = lambda call: 1
    sums_in_output: bool = False
    flops: Callable[[Call], int] = lambda call: 0
    magnitude: Magnitude | None = None
    magnitudes: Mapping[str, Magnitude] = dataclasses.field(default_factory=dict)
    alias: bool = False
    fold_from_specs: Callable[[Call], Outputs] | None = None
    variadic_outputs: bool = False
    check_constants: Callable[[Call, Mapping[str, Array]], None] | None = None
    sums: Sums | None = None
    cases: tuple[str, ...] = ()
    doc: str = ""
    parameters: Mapping[str, str] = dataclasses.field(default_factory=dict)
    published: Rules = dataclasses.field(default_factory=dict)
    counts: bool = False

    def attr(self, word: str, value: object = "VALUE") -> Attr:
        """The attribute with this name or key; UsageError with a suggestion otherwise."""
        for attr in self.attrs:
            if word in (attr.name, attr.key):
                return attr
        if word in self.parameters:
            raise UsageError(self._of_routes(word, value))
        known = [a.name for a in self.attrs]
        has = ", ".join(known) or "none"
        raise UsageError(f"{self.name} has no attribute {word!r}{did_you_mean(word, known)}; it has {has}")

    def _of_routes(self, word: str, value: object) -> str:
        option = f"--param {self.name}={self.parameters[word]}:{value}"
        return f"{self.name} has no attribute {word!r}: it is a parameter of routes, write {option}"

    def compulsory_bytes(self, call: Call) -> int:
        """Bytes that any way to compute the call must move: every operand read once, every output written once."""
        written = sum(spec.size for spec in call.outputs.values())
        partial = {operand.name for operand in self.operands if operand.partial}
        read_bytes = (
            (min(spec.size, written) if name in partial else spec.size) * spec.dtype.nbytes
            for name, spec in call.operands.items()
            if spec is not None
        )
        return sum(read_bytes) + sum(spec.nbytes for spec in call.outputs.values())

    def call(self, specs: Specs, attrs: Mapping[str, AttrValue] | None = None) -> Call:
        """A checked call: defaults filled, attributes canonical, outputs inferred. Raises GraphError."""
        attrs = attrs or {}
        full: Attrs = {}
        for attr in self.attrs:
            value = attrs.get(attr.name, attr.default)
            if value is None:
                raise GraphError(f"{self.name} needs the attribute {attr.name!r}")
            full[attr.name] = _typed(self.name, attr, value)
        for name, value in attrs.items():
            if name in self.parameters:
                raise GraphError(self._of_routes(name, value))
            if name not in full:
                raise GraphError(f"{self.name} has no attribute {name!r}{did_you_mean(name, full)}")
        for operand in self.operands:
            if not (operand.optional or operand.host or operand.variadic) and specs.get(operand.name) is None:
                raise GraphError(f"{self.name} needs the operand {operand.name!r}")
        resolved, made = self.resolve(specs, full)
        numbered = [f"{self.outputs[0]}{i}" for i in range(len(made))]
        named = zip(numbered if self.variadic_outputs else self.outputs, made, strict=False)
        outputs = {name: spec for name, spec in named if spec is not None}
        for spec in outputs.values():
            # What is too large otherwise is refused with the device's limits; arrays without elements are made.
            if (not spec.size or len(spec.dims) > MAX_RANK) and (problem := shape_problem(spec.dims, spec.dtype)):
                raise GraphError(f"{self.name} would make {shape_str(spec.dims)}, which cannot be: {problem}")
        return Call(self.name, dict(specs), outputs, resolved)


def first(best: Any, values: Iterable[Any]) -> tuple[Any, ...]:
    """Legal values of a parameter: the best, then the others in their order."""
    return (best, *(value for value in values if value != best))


def defaults(legal: Legal) -> dict[str, Any]:
    """The default of every parameter: the first of its legal values."""
    return {name: values[0] for name, values in legal.items()}


@functools.lru_cache(maxsize=64)  # each tile of each call asks
def most_invocations(device: Device) -> int:
    """Invocations that a workgroup may have along x, also where its pipeline asks for a subgroup size: on devices with
    several sizes, workgroups of all kernels keep to that."""
    most = min(device.limit("maxComputeWorkGroupInvocations"), device.limits("maxComputeWorkGroupSize")[0])
    return min(most, device.most_sized_invocations or most)


def most_shared_bytes(device: Device) -> int:
    """Shared memory that a workgroup may take."""
    return int(device.limit("maxComputeSharedMemorySize"))


def holds_workgroup(device: Device, local: int, shared_bytes: int) -> bool:
    """Whether a workgroup may have so many invocations and so much shared memory."""
    return local <= most_invocations(device) and shared_bytes <= most_shared_bytes(device)


def local_sizes(device: Device, default: int, *more: int) -> tuple[int, ...]:
    """Workgroup sizes: the default, and those of the others that the device allows (up to 128 every one does)."""
    return (default, *(size for size in more if size <= most_invocations(device)))


def _typed(op: str, attr: Attr, value: AttrValue) -> AttrValue:
    """The value with exactly the attribute's type: an integer may stand for a float, one element for itself as a
    tuple, and the other way round; a bool is no number. GraphError otherwise."""
    inner = get_args(attr.type)
    is_tuple = bool(inner)
    element: type[Any] = inner[0] if is_tuple else attr.type
    values = value if isinstance(value, tuple) else (value,)
    accepted = int | float if element is float else element
    legal = all(isinstance(v, accepted) and isinstance(v, bool) == (element is bool) for v in values)
    if not legal or not (is_tuple or len(values) == 1):
        words = f"{element.__name__} values" if is_tuple else f"one {element.__name__}"
        raise GraphError(f"{op}: the attribute {attr.name!r} is {value!r}; it takes {words}")
    if element is int and any(not -(1 << 63) <= int(v) < 1 << 63 for v in values):
        raise GraphError(f"{op}: the attribute {attr.name!r} holds a number of more than 64 bits; smaller ones can be")
    try:
        typed: tuple[Any, ...] = tuple(element(v) for v in values)
    except OverflowError:
        raise GraphError(f"{op}: the attribute {attr.name!r} is {value!r}, which no float can hold") from None
    if any(isinstance(v, int) and made != v for v, made in zip(values, typed, strict=True)):
        raise GraphError(f"{op}: the attribute {attr.name!r} is {value!r}, which is not exact as a float")
    return typed if is_tuple else typed[0]


def linear_groups(threads: int, local: int, device: Device) -> tuple[int, int, int]:
    """Workgroup counts for a flat index over ``threads``, folded over y where x passes the device's limit.

    Shaders read it back with ``flat_index()`` of common.glsl and return beyond the total.
    """
    groups = max(1, ceil_div(threads, local))
    limit_x = device.limits("maxComputeWorkGroupCount")[0]
    rows = ceil_div(groups, limit_x)
    return ceil_div(groups, rows), rows, 1


Grid = tuple[tuple[int, int, int], tuple[int, int, int]]
"""Workgroups of a launch, and invocations of one, as `Dispatch` takes them one after the other."""


def over_invocations(threads: int, local: int, device: Device) -> Grid:
    """The grid of a flat index over ``threads``, by workgroups of ``local``."""
    return linear_groups(threads, local, device), (local, 1, 1)


def over_workgroups(count: int, local: int, device: Device) -> Grid:
    """The grid of so many workgroups of ``local`` invocations."""
    return linear_groups(count, 1, device), (local, 1, 1)


def reciprocal(divisor: int) -> tuple[int, int]:
    """A factor and a shift that divide in two instructions: for 0 <= x < 2**31 and a divisor from 2 to 2**31, x //
    divisor is the upper word of x * factor, shifted to the right.

    A shader divides by 1 itself. Source: Granlund and Montgomery, Division by Invariant Integers using Multiplication,
    1994, theorem 4.2 with 31 bits.
    """
    shift = max(divisor - 1, 1).bit_length()
    return (1 << (31 + shift)) // max(divisor, 2) + 1, shift - 1


def divisor(name: str, value: int) -> dict[str, Argument]:
    """The push constants by which a shader divides by a value (shaders/include/divided.glsl)."""
    factor, shift = reciprocal(value)
    return {f"{name}_factor": factor, f"{name}_shift": shift}
