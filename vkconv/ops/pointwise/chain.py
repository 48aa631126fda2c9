"""Several elementwise operations in one pass over memory: a value starts as x0 and takes one step after the other.

``steps`` is their text, joined by slashes. A step is a function of activation.py (``relu``), or an operation with a
second value: an operand (``add_x1``), the next of ``numbers`` (``mul``), or the value itself (``mul_y``); with an ``r``
before it (``rsub``, ``rdiv_x2``) the second value is the first operand. Parameters of functions are the next of
``numbers`` too. Operands broadcast to the shape of y. Steps are specialization constants, numbers are pushed: no source
is made.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, GraphError, Shape, did_you_mean
from vkconv.device import Device
from vkconv.graph.ir import AttrValue, TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.activation import ACTIVATIONS, apply
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import FLOATS
from vkconv.ops.core.tolerance import relative_tolerance
from vkconv.ops.kernels.strided import Walk, merge, walk_dispatch, walk_params
from vkconv.ops.pointwise.binary import ROWS as BINARIES
from vkconv.program import Program, Word
from vkconv.route import Params, Route

MAX_OPERANDS = 3  # with y four storage buffers, as many as every device binds
MAX_STEPS = 8
MAX_NUMBERS = 12
_MAX_RANK = 4
# Shaders by the steps that they have room for: a driver compiles every step, taken or not.
_CHAINS = {count: Shader(shaders.pointwise.CHAIN, DType.F32, (("STEPS", str(count)),)) for count in (2, 4, MAX_STEPS)}

BINARY_STEPS = ("add", "sub", "mul", "div", "minimum", "maximum", "prelu")
UNARY_STEPS = tuple(row.name for row in ACTIVATIONS.values() if row.epilogue and row.name != "none")
_REVERSED = tuple(f"r{name}" for name in ("sub", "div", "prelu"))
# A step in one word, as shaders/chain.comp takes it apart: function, second value, first number, kind, order.
_SOURCE, _NUMBER, _BINARY, _REVERSED_BIT = 8, 12, 1 << 16, 1 << 17
_FROM_NUMBER, _FROM_SELF = 3, 4


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One operation: its function, the second value of a binary one (``x0``, ``y`` for the value itself, empty for a
    number), whether that is the first operand, and its numbers."""

    function: str
    second: str = ""
    reversed: bool = False
    numbers: tuple[float, ...] = ()

    @property
    def is_binary(self) -> bool:
        return self.function in BINARY_STEPS

    def __str__(self) -> str:
        return "r" * self.reversed + self.function + (f"_{self.second}" if self.second else "")


def attributes(steps: Sequence[Step]) -> Attrs:
    """The attributes of a chain of these steps."""
    return {"steps": "/".join(map(str, steps)), "numbers": tuple(n for step in steps for n in step.numbers)}


def steps_of(attrs: Mapping[str, AttrValue]) -> tuple[Step, ...]:
    """The steps of a chain; GraphError where the text or the count of numbers makes no sense."""
    values = attrs["numbers"]
    numbers = [float(n) for n in (values if isinstance(values, tuple) else (values,))]
    given, steps = len(numbers), []
    for text in str(attrs["steps"]).split("/"):
        name, _, second = text.rpartition("_") if text.rpartition("_")[2] in ("x0", "x1", "x2", "y") else (text, "", "")
        is_reversed = name in _REVERSED
        function = name[1:] if is_reversed else name
        if function not in (*BINARY_STEPS, *UNARY_STEPS) or (second and function in UNARY_STEPS):
            near = did_you_mean(name, (*BINARY_STEPS, *UNARY_STEPS, *_REVERSED))
            raise GraphError(f"chain: there is no step {text!r}{near}; a step is such as relu, mul, add_x1 or rsub_x2")
        count = int(not second) if function in BINARY_STEPS else len(ACTIVATIONS[function].params)
        if len(numbers) < count:
            raise GraphError(f"chain: the steps {attrs['steps']} take more than the {given} numbers there are")
        steps.append(Step(function, second, is_reversed, tuple(numbers[:count])))
        del numbers[:count]
    if numbers:
        raise GraphError(f"chain: the steps {attrs['steps']} take {given - len(numbers)} of the {given} numbers")
    return tuple(steps)


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    operands = shapes.variadic(specs, "x")
    steps = steps_of(attrs)
    if not 1 <= len(operands) <= MAX_OPERANDS:
        raise GraphError(f"chain has {len(operands)} operands; it takes 1 to {MAX_OPERANDS}")
    if len(steps) > MAX_STEPS or sum(len(step.numbers) for step in steps) > MAX_NUMBERS:
        raise GraphError(f"chain: {attrs['steps']} is more than {MAX_STEPS} steps and {MAX_NUMBERS} numbers")
    named = {f"x{i}": spec for i, spec in enumerate(operands)}
    shapes.same_dtype("chain", named)
    if not operands[0].dtype.is_float:
        raise GraphError(f"chain: operands are {operands[0].dtype}; cast them to f32 first")
    for step in steps:
        if step.second.startswith("x") and step.second not in named:
            raise GraphError(f"chain: the step {step} reads {step.second}, and there are {len(operands)} operands")
    out = shapes.broadcast_shape("chain", *(spec.dims for spec in operands))
    rank = _walk([spec.dims for spec in operands], out).rank
    if rank > _MAX_RANK:
        raise GraphError(f"chain: {rank} dimensions stay after merging; at most {_MAX_RANK} can")
    return {**attrs, **attributes(steps)}, (TensorSpec(out, operands[0].dtype),)


def _by_vec4(walk: Walk) -> bool:
    """Whether rows are whole vec4, and operands either too or repeat along them."""
    return walk.dims[-1] % 4 == 0 and all(strides[-1] in (0, 1) for strides in walk.strides)


def _in_vec4(walk: Walk) -> Walk:
    """The walk with vec4 as its elements; one that repeats along a row is still counted by ones."""
    strides = [(*(s // 4 for s in row[:-1]), 1) if row[-1] else row for row in walk.strides]
    return Walk((*walk.dims[:-1], walk.dims[-1] // 4), tuple(strides))


def _params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    """Workgroup size and elements of an invocation; where these are vec4, few."""
    names = [name for name in call.operands if call.has(name)]
    vec4 = _by_vec4(_walk([call.shape(name) for name in names], call.shape("y")))
    return {**walk_params(call, device), **({"items": (2, 1, 4, 8)} if vec4 else {})}


def _walk(operands: Sequence[Shape], out: Shape) -> Walk:
    filled = [*operands, *(operands[0] for _ in range(MAX_OPERANDS - len(operands)))]
    return merge(out, *(shapes.broadcast_strides(dims, out) for dims in filled))


def _words(steps: Sequence[Step]) -> tuple[Word, ...]:
    words: list[Word] = []
    number = 0
    for step in steps:
        if step.is_binary:
            second = step.second
            source = int(second[1:]) if second.startswith("x") else _FROM_SELF if second else _FROM_NUMBER
            word = BINARIES[step.function].id | source << _SOURCE | _BINARY | _REVERSED_BIT * step.reversed
        else:
            word = ACTIVATIONS[step.function].id
        words.append(word | number << _NUMBER)
        number += len(step.numbers)
    return tuple(words)


def _program(call: Call, device: Device, params: Params) -> Program:
    names = [f"x{i}" for i in range(len(shapes.variadic(call.operands, "x")))]
    steps = steps_of(call.attrs)
    room = next(count for count in _CHAINS if count >= len(steps))
    numbers = [n for step in steps for n in step.numbers]
    walk = _walk([call.shape(name) for name in names], call.shape("y"))
    vec4 = _by_vec4(walk)
    walk = _in_vec4(walk) if vec4 else walk
    push = {"number": (*numbers, *(0.0,) * (MAX_NUMBERS - len(numbers)))}
    constants = {"VEC4": vec4, **{f"STEP_{i}": word for i, word in enumerate(_words(steps))}}
    unused = {f"x{i}": None for i in range(len(names), MAX_OPERANDS)}
    return Program((walk_dispatch(_CHAINS[room], walk, device, params, push, constants, unused),))


def _functions(call: Call, arrays: Arrays) -> list[tuple[Step, Callable[[F64], F64]]]:
    """Each step and what it makes of a value, in float64."""

    def function(step: Step) -> Callable[[F64], F64]:
        if not step.is_binary:
            return lambda value: apply(step.function, value, *step.numbers)
        reference = BINARIES[step.function].reference

        def operate(value: F64) -> F64:
            other = (
                value
                if step.second == "y"
                else shapes.given(arrays, step.second).astype(np.float64)
                if step.second
                else np.float64(np.float32(step.numbers[0]))
            )
            return np.asarray(reference(*((other, value) if step.reversed else (value, other))), np.float64)

        return operate

    return [(step, function(step)) for step in steps_of(call.attrs)]


def _start(call: Call, arrays: Arrays) -> F64:
    return np.broadcast_to(shapes.given(arrays, "x0").astype(np.float64), call.shape("y"))


def _reference(call: Call, arrays: Arrays) -> Outputs:
    value = _start(call, arrays)
    with np.errstate(all="ignore"):
        for _, function in _functions(call, arrays):
            value = function(value)
    return [value]


def _magnitude(call: Call, arrays: Arrays, reference: F64) -> F64:
    """What every step rounds, carried through the steps behind it: how far the value is off then, over the rounding of
    one step, is how far that moves the next value, and that value's own size."""
    rounding = relative_tolerance(1, DType.F32)
    value = _start(call, arrays)
    size = np.zeros(value.shape)
    with np.errstate(all="ignore"):
        for step, function in _functions(call, arrays):
            moved = [np.abs(function(value + sign * rounding * size) - function(value)) for sign in (1, -1)]
            cancelled = None if step.is_binary else ACTIVATIONS[step.function].cancelled
            more = cancelled(value, *(*step.numbers, 0.0, 0.0)[:2]) if cancelled else 0.0
            value = function(value)
            # What is infinite or NaN is exactly that, whatever a later step makes of it.
            size = np.where(np.isfinite(value), np.fmax(*moved) / rounding + np.abs(value) + more, 0.0)
    return size


CHAIN = Op(
    "chain",
    operands=(Operand("x", variadic=True),),
    resolve=_resolve,
    reference=_reference,
    attrs=(Attr("steps", "steps", str), Attr("numbers", "numbers", tuple[float, ...], ())),
    routes=(
        Route(
            "broadcast",
            _program,
            tuple(_CHAINS.values()),
            "one pass over memory for all steps, each a specialization constant; by vec4 where rows are whole vec4",
            must=(FLOATS,),
            params=_params,
        ),
    ),
    magnitude=_magnitude,
    flops=lambda call: call.outputs["y"].size * len(steps_of(call.attrs)),
    cases=(
        "chain:x0=3x67,x1=3x67,steps=add_x1/relu",
        "chain:x0=3x67,steps=sigmoid/mul_x0",
        "chain:x0=2x5x3x7,x1=5x1x1,x2=2x5x1x1,steps=mul_x1/add_x2/clip/rsub,numbers=-1x0.5x1.25",
        "chain:x0=1,x1=3x67,steps=abs/rdiv_x1/mul_y",
        "chain:x0=70001,steps=mul/add/tanh,numbers=0.5x-2.0",
        "chain:x0=4x1x9,x1=7x1,x2=scalar,steps=minimum_x1/maximum_x2/leaky_relu/prelu/rprelu_x1/div/exp/sub,"
        "numbers=0.25x-0.5x3.0x1.0",
        "chain:x0=2x3x8x8,x1=3x1x1,x2=2x3x8x8,steps=mul_x1/add_x2/relu",
        "chain:x0=3x1x16,x1=5x16,x2=5x1,steps=tanh/mul_x1/sub_x2/mul,numbers=3.0",
        "chain:x0=2x3x4x5,x1=2x1x4x1,x2=1x3x1x5,steps=rsub_x1/add_x2/gelu/mul_x0",
    ),
    doc="Up to 8 elementwise steps on up to 3 operands that broadcast, in one pass: steps=sigmoid/mul_x0 is silu.",
)
