"""Recurrent cells by definition: one step in float64, and how far one in f32 may be off."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from vkconv.call import Call
from vkconv.core import GraphError, did_you_mean
from vkconv.ops.core import shapes
from vkconv.ops.core.activation import ACTIVATIONS, apply, check_numbers
from vkconv.ops.core.base import F64, Arrays, Attrs
from vkconv.ops.core.tolerance import rounding_of_storing, rounding_of_sum


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """A kind of cell: its number in the shaders, how many gates it has, parts its state has and rows ``extra`` has, and
    its functions unless others are given."""

    id: int
    gates: int
    parts: int
    extra: int
    functions: tuple[str, ...]


CELLS: Mapping[str, Cell] = {
    "lstm": Cell(0, 4, 2, 3, ("sigmoid", "tanh", "tanh")),
    "gru": Cell(1, 3, 1, 1, ("sigmoid", "tanh")),
    "rnn": Cell(2, 1, 1, 0, ("tanh",)),
}
# Functions that only cells have, with their numbers in shaders/recurrence/recurrence.glsl.
_OWN = {"affine": 1000, "scaled_tanh": 1001}
# Of those of the table, the ones that ONNX gives to cells.
_SHARED = (
    "elu",
    "hard_sigmoid",
    "leaky_relu",
    "relu",
    "sigmoid",
    "softplus",
    "softsign",
    "tanh",
    "thresholded_relu",
)
FUNCTIONS: Mapping[str, int] = {**{name: ACTIVATIONS[name].id for name in _SHARED}, **_OWN}
DIRECTIONS = ("forward", "reverse", "bidirectional")


def functions_of(attrs: Attrs) -> tuple[tuple[str, float, float], ...]:
    """The functions of a cell with their two parameters. GraphError for one that there is not, or another number."""
    cell = CELLS[str(attrs["cell"])]
    names = tuple(filter(None, str(attrs["functions"]).split("-"))) or cell.functions
    if len(names) != len(cell.functions):
        raise GraphError(f"recurrence: {attrs['cell']} has {len(cell.functions)} functions, given {'-'.join(names)}")
    for name in names:
        if name not in FUNCTIONS:
            raise GraphError(f"recurrence: there is no function {name!r}{did_you_mean(name, FUNCTIONS)}")
    numbers = []
    for key in ("act_a", "act_b"):
        value = attrs[key]
        given = [float(v) for v in value] if isinstance(value, tuple) else [float(value)]
        if len(given) not in (0, len(names)):
            raise GraphError(f"recurrence: {key} has {len(given)} numbers, one for each of {len(names)} functions")
        check_numbers("recurrence", *given)
        numbers.append(given or [0.0] * len(names))
    return tuple(zip(names, *numbers, strict=True))


@dataclasses.dataclass(frozen=True)
class Measure:
    """Values, and how far those of f32 may be off. What is not finite does not move: gates that it saturates are as
    exact as others."""

    value: F64
    error: F64

    def __post_init__(self) -> None:
        object.__setattr__(self, "error", np.where(np.isfinite(self.value), self.error, 0.0))

    @classmethod
    def exact(cls, value: F64) -> "Measure":
        return cls(value, np.zeros_like(value))

    def plus(self, other: "Measure") -> "Measure":
        total = self.value + other.value
        return Measure(total, self.error + other.error + rounding_of_sum(np.abs(total), 1))

    def times(self, other: "Measure") -> "Measure":
        made = self.value * other.value
        moved = np.abs(self.value) * other.error + np.abs(other.value) * self.error + self.error * other.error
        return Measure(made, moved + rounding_of_sum(np.abs(made), 1))

    def from_one(self) -> "Measure":
        return Measure(1.0 - self.value, self.error + rounding_of_sum(np.ones_like(self.value), 1))


class Steps:
    """The steps of a call for one direction and all sequences."""

    def __init__(self, call: Call, arrays: Arrays, direction: int) -> None:
        self.call, self.cell = call, CELLS[call["cell"]]
        self.functions = functions_of(call.attrs)  # type: ignore[arg-type]
        x, r = (shapes.given(arrays, name).astype(np.float64) for name in ("x", "r"))
        self.steps, self.batch, _ = x.shape
        directions, self.hidden, _ = r.shape
        self.x = x.reshape(self.steps, self.batch, directions, self.cell.gates, self.hidden)[:, :, direction]
        self.r = r[direction].reshape(self.hidden, self.cell.gates, self.hidden)
        extra = arrays.get("extra")
        rows = max(1, self.cell.extra)
        given = np.zeros((directions, rows * self.hidden)) if extra is None else np.asarray(extra, np.float64)
        self.extra = given[direction].reshape(rows, self.hidden)
        self.reverse = call["direction"] == "reverse" or direction == 1
        self.out = call.outputs["y"].dtype

    def function(self, which: int, at: Measure) -> Measure:
        """A function of the cell; f32 evaluates it with the rounding of a sum of one. What gates sum is clipped, the
        cell is not: so ONNX Runtime reads ONNX, which leaves it open."""
        clip = float(self.call["clip"])
        if clip and which < 2:
            at = Measure(np.clip(at.value, -clip, clip), at.error)
        name, a, b = self.functions[which]

        def of(v: F64) -> F64:
            if name == "affine":
                return np.asarray(a * v + b)
            return np.asarray(a * np.tanh(b * v)) if name == "scaled_tanh" else apply(name, v, a, b)

        value = of(at.value)
        moved = np.fmax(np.abs(of(at.value + at.error) - value), np.abs(of(at.value - at.error) - value))
        size = np.abs(value) + (abs(b) if name in ("affine", "hard_sigmoid") else 0.0)
        return Measure(value, moved + rounding_of_sum(size, 1))

    def product(self, h: Measure, gate: int, rows: slice | list[int]) -> Measure:
        """h R of a gate."""
        r = self.r[:, gate]
        sizes = np.abs(h.value) @ np.abs(r)
        return Measure(h.value @ r, h.error @ np.abs(r) + rounding_of_sum(sizes, self.hidden))

    def stepped(self, rows: list[int], time: list[int], h: Measure, c: Measure) -> tuple[Measure, Measure]:
        """The state of sequences ``rows`` after a step at their ``time``."""

        def x(gate: int) -> Measure:
            return Measure.exact(self.x[time, rows, gate])

        def s(gate: int) -> Measure:
            return self.product(h, gate, rows)

        def p(part: int) -> Measure:
            return Measure.exact(np.broadcast_to(self.extra[part], h.value.shape))

        if self.call["cell"] == "lstm":
            i = self.function(0, x(0).plus(s(0)).plus(p(0).times(c)))
            f = i.from_one() if self.call["input_forget"] else self.function(0, x(2).plus(s(2)).plus(p(2).times(c)))
            made = f.times(c).plus(i.times(self.function(1, x(3).plus(s(3)))))
            o = self.function(0, x(1).plus(s(1)).plus(p(1).times(made)))
            return o.times(self.function(2, made)), self.stored(made)
        if self.call["cell"] == "gru":
            z, r = (self.function(0, x(gate).plus(s(gate))) for gate in (0, 1))
            if self.call["linear_before_reset"]:
                g = self.function(1, x(2).plus(r.times(s(2).plus(p(0)))))
            else:
                g = self.function(1, x(2).plus(self.product(r.times(h), 2, rows)))
            return z.from_one().times(g).plus(z.times(h)), c
        return self.function(0, x(0).plus(s(0))), c

    def stored(self, made: Measure) -> Measure:
        """A state that the next step reads as it was stored."""
        return Measure(made.value, made.error + rounding_of_storing(made.value, self.out))


def run(call: Call, arrays: Arrays) -> tuple[Measure, Measure]:
    """The outputs y and state of a call, with what each may be off by."""
    specs = call.outputs
    y, y_error = np.zeros(specs["y"].dims), np.zeros(specs["y"].dims)
    state, state_error = np.zeros(specs["state"].dims), np.zeros(specs["state"].dims)
    initial, lengths = arrays.get("initial"), arrays.get("lengths")
    if initial is not None:
        state[:] = initial
    steps, directions, batch, _ = y.shape
    count = np.full(batch, steps) if lengths is None else np.clip(lengths, 0, steps)
    for d in range(directions):
        cell = Steps(call, arrays, d)
        for step in range(steps):
            rows = [n for n in range(batch) if step < count[n]]
            if not rows:
                break
            time = [int(count[n]) - 1 - step if cell.reverse else step for n in rows]
            h = Measure(state[0, d, rows], state_error[0, d, rows])
            c = Measure(state[-1, d, rows], state_error[-1, d, rows])
            h, c = cell.stepped(rows, time, h, c)
            h = cell.stored(h)
            state[-1, d, rows], state_error[-1, d, rows] = c.value, c.error
            state[0, d, rows], state_error[0, d, rows] = h.value, h.error
            y[time, d, rows], y_error[time, d, rows] = h.value, h.error
    return Measure(y, y_error), Measure(state, state_error)
