"""What a call must give: seeded inputs, the float64 reference, and how far a result is from it."""

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np

from vkconv.core import Array, DType, UnsupportedError
from vkconv.ops import OPS
from vkconv.ops.calls import format_call
from vkconv.ops.tolerance import tolerance
from vkconv.plan.bound import widen
from vkconv.route import Call

# References are kept for the routes of a call that come next, not for ever: the last ones within these bytes.
_KEEP_BYTES = 1 << 30
_kept: OrderedDict[tuple[str, int], "Expected"] = OrderedDict()


@dataclasses.dataclass(frozen=True)
class Expected:
    """Inputs of a call by operand, the reference of every output, and the largest error allowed for each."""

    arrays: Mapping[str, Array]
    outputs: Sequence[Array]
    allowed: Sequence[float]

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in (*self.arrays.values(), *self.outputs))


@dataclasses.dataclass(frozen=True)
class Errors:
    """The worst output of a call: its largest error, that and the allowed one relative to the largest reference
    element, and what is wrong if anything is. Errors that are no number are None."""

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
        errors = _compare(name, got, np.asarray(want), allowed)
        if worst is None or (errors.problem and not worst.problem) or _excess(errors) > _excess(worst):
            worst = errors
    assert worst is not None  # every op has an output
    return worst


def _make(call: Call, seed: int) -> Expected:
    op, arrays = OPS[call.op], draw(call, seed)
    operands = dict.fromkeys(call.operands) | {name: widen(array) for name, array in arrays.items()}
    with np.errstate(all="ignore"):
        outputs = op.reference(call, operands)
    terms = op.terms(call)
    return Expected(arrays, outputs, [tolerance(call, want, terms) for want in outputs])


def _compare(name: str, got: Array, want: Array, allowed: float) -> Errors:
    result, target = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(target)
    size = float(np.abs(target[finite]).max(initial=0.0))
    scale = size or 1.0
    with np.errstate(invalid="ignore"):
        same = np.where(finite, np.isfinite(result), (result == target) | (np.isnan(result) & np.isnan(target)))
    if not same.all():
        where = tuple(int(i) for i in np.argwhere(~same)[0])
        problem = f"{name}{list(where)} is {result[where]:g}, the reference {target[where]:g}"
        return Errors(None, None, allowed / scale, f"{problem} ({int((~same).sum())} such elements)")
    error = np.abs(np.subtract(result, target, where=finite, out=np.zeros_like(target)))
    most = float(error.max(initial=0.0))
    problem = ""
    if most > allowed:
        where = tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape))
        wrong = int((error > allowed).sum())
        problem = (
            f"{name}{list(where)} is {result[where]:g}, the reference {target[where]:g}; "
            f"{wrong} of {error.size} elements are off by more than {allowed:.2g}"
        )
    return Errors(most, most / scale, allowed / scale, problem)


def _excess(errors: Errors) -> float:
    return (errors.max_rel or 0.0) - errors.allowed
