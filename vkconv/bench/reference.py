"""What a call must give: seeded inputs, the float64 reference, and how far a result is from it."""

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np

from vkconv.core import Array, DType, UnsupportedError
from vkconv.ops import OPS
from vkconv.ops.base import F64
from vkconv.ops.calls import format_call
from vkconv.ops.tolerance import Tolerance, tolerance
from vkconv.plan.bound import widen
from vkconv.route import Call

# References are kept for the routes of a call that come next, not for ever: the last ones within these bytes.
_KEEP_BYTES = 1 << 30
_kept: OrderedDict[tuple[str, int], "Expected"] = OrderedDict()


@dataclasses.dataclass(frozen=True)
class Expected:
    """Inputs of a call by operand, the reference of every output, and the error allowed for each."""

    arrays: Mapping[str, Array]
    outputs: Sequence[Array]
    allowed: Sequence[Tolerance]

    @property
    def nbytes(self) -> int:
        magnitudes = (tolerance.magnitude for tolerance in self.allowed)
        return sum(a.nbytes for a in (*self.arrays.values(), *self.outputs, *magnitudes))


@dataclasses.dataclass(frozen=True)
class Errors:
    """The worst output of a call: its largest error; the largest one relative to the magnitude that the tolerance
    goes by, and what is allowed of it; and what is wrong if anything is. Errors that are no number are None."""

    max_abs: float | None
    max_rel: float | None
    allowed: float
    problem: str = ""


def expected(call: Call, seed: int) -> Expected:
    """Seeded inputs and reference outputs of a call; kept for a while, so that its routes share one reference."""
    key = (format_call(call, OPS), seed)
    made = _kept.pop(key, None) or _make(call, seed)
    _kept[key] = made
    while len(_kept) > 1 and sum(e.nbytes for e in _kept.values()) > _KEEP_BYTES:
        _kept.popitem(last=False)
    return made


def draw(call: Call, seed: int) -> dict[str, Array]:
    """Inputs of a call: normal floats, integers from 0 to 3, bools; UnsupportedError for bf16, which numpy lacks."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for name, spec in call.operands.items():
        if spec is None:
            continue
        if spec.dtype is DType.BF16:
            raise UnsupportedError(f"{call.op}: no inputs can be drawn in bf16")
        if spec.dtype.is_float:
            arrays[name] = rng.standard_normal(spec.dims, np.float32).astype(spec.dtype.numpy)
        else:
            arrays[name] = rng.integers(0, 2 if spec.dtype is DType.BOOL else 4, spec.dims).astype(spec.dtype.numpy)
    return arrays


def compare(call: Call, outputs: Sequence[Array], wanted: Expected) -> Errors:
    """How far outputs are from the reference; NaN and infinities must be where the reference has them."""
    worst: Errors | None = None
    for name, got, want, allowed in zip(call.outputs, outputs, wanted.outputs, wanted.allowed, strict=True):
        errors = compare_output(name, got, np.asarray(want), allowed)
        if worst is None or (errors.problem and not worst.problem) or _excess(errors) > _excess(worst):
            worst = errors
    assert worst is not None  # every op has an output
    return worst


def _make(call: Call, seed: int) -> Expected:
    op, arrays = OPS[call.op], draw(call, seed)
    operands = dict.fromkeys(call.operands) | {name: widen(array) for name, array in arrays.items()}
    with np.errstate(all="ignore"):
        outputs = op.reference(call, operands)
    return Expected(arrays, outputs, [tolerance(op, call, operands, want) for want in outputs])


def compare_output(name: str, got: Array, want: Array, allowed: Tolerance) -> Errors:
    """How far one output is from its reference; ``name`` is what the words of a problem call it."""
    result, target = got.astype(np.float64), want.astype(np.float64)
    if got.dtype.kind == "f":  # what rounds to infinity in the output's type is infinite
        with np.errstate(over="ignore"):
            target = np.where(np.isinf(target.astype(got.dtype)), np.copysign(np.inf, target), target)
    finite = np.isfinite(target)
    with np.errstate(invalid="ignore"):
        same = np.where(finite, np.isfinite(result), (result == target) | (np.isnan(result) & np.isnan(target)))
    if not same.all():
        where = tuple(int(i) for i in np.argwhere(~same)[0])
        problem = f"{name}{list(where)} is {result[where]:g}, the reference {target[where]:g}"
        return Errors(None, None, allowed.relative, f"{problem} ({int((~same).sum())} such elements)")
    error = np.abs(np.subtract(result, target, where=finite, out=np.zeros_like(target)))
    limit = allowed.absolute
    beyond = error > limit
    problem = ""
    if beyond.any():
        # How far an error is beyond what is allowed counts, not how large it is.
        excess = np.divide(error, limit, where=limit > 0, out=np.where(beyond, np.inf, 0.0))
        where = tuple(int(i) for i in np.unravel_index(int(excess.argmax()), error.shape))
        problem = (
            f"{name}{list(where)} is {result[where]:g}, the reference {target[where]:g}, "
            f"{limit[where]:.2g} is allowed; {int(beyond.sum())} of {error.size} elements are off by more than that"
        )
    return Errors(float(error.max(initial=0.0)), _relative(error, allowed), allowed.relative, problem)


def _relative(error: F64, allowed: Tolerance) -> float:
    """The largest error, less the floor, over its magnitude; over the error itself where the magnitude is 0."""
    beyond_floor = np.maximum(error - allowed.floor, 0.0)
    scale = np.where(allowed.magnitude > 0, allowed.magnitude, error)
    return float(np.divide(beyond_floor, scale, where=beyond_floor > 0, out=np.zeros_like(error)).max(initial=0.0))


def _excess(errors: Errors) -> float:
    return (errors.max_rel or 0.0) - errors.allowed
