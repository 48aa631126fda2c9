"""Calls held to their float64 reference: what a call must give, running it alone, and the one comparison of both."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from vkconv.call import Call
from vkconv.check.pattern import pattern
from vkconv.core import Array, DType, shape_str
from vkconv.device import Device
from vkconv.ops import OPS
from vkconv.ops.core.base import F64
from vkconv.ops.core.tolerance import Tolerance, tolerance
from vkconv.plan.bound import widen
from vkconv.plan.single import WEIGHTS, call_graph, forcing, held_constant, node_of
from vkconv.route import Params, Route
from vkconv.session import Session


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
class Checked:
    """How far the worst output of a call is from its reference: its largest error; the largest one relative to the
    magnitude that the tolerance goes by, and what is allowed of it; and what is wrong if anything is. Errors that are
    no number are None.

    ``mean_abs`` is the mean error, ``cosine`` that of the angle between output and reference (None where one of them
    is zero or not finite), ``worst`` the index of the element that is furthest beyond what is allowed, else of the
    largest error, ``wrong`` how many are beyond it and ``pattern`` where those are; ``nan`` and ``inf`` count such
    elements of the output."""

    max_abs: float | None
    max_rel: float | None
    allowed: float
    problem: str = ""
    output: str = ""
    mean_abs: float | None = None
    cosine: float | None = None
    worst: tuple[int, ...] | None = None
    wrong: int = 0
    pattern: str = ""
    nan: int = 0
    inf: int = 0

    @property
    def ok(self) -> bool:
        return not self.problem


@dataclasses.dataclass(frozen=True)
class Ran:
    """What running a call gave: the route that was dispatched, its parameters, the outputs of each replay in order."""

    route: str
    params: Params
    outputs: tuple[tuple[Array, ...], ...]


def expect(call: Call, arrays: Mapping[str, Array], route: str = "") -> Expected:
    """The float64 reference of a call for these inputs, and the error that is allowed: that of sums in f32, or of the
    named route, which may round more. Raises IndexError or ValueError where the reference refuses the inputs."""
    with np.errstate(all="ignore"):
        outputs = OPS[call.op].reference(call, _operands(call, arrays))
    return Expected(arrays, outputs, allowed_errors(call, arrays, outputs, route))


def allowed_errors(
    call: Call, arrays: Mapping[str, Array], outputs: Sequence[Array], route: str = ""
) -> list[Tolerance]:
    """The error that is allowed for each output, on the named route, from inputs and reference outputs of a call."""
    op, operands = OPS[call.op], _operands(call, arrays)
    by = _rounds_more(call, route)
    depth, rounding = (0, None) if by is None else (by.f16_depth(call) if by.f16_depth else 0, by.rounding)
    named = zip(call.outputs, outputs, strict=True)
    return [tolerance(op, call, operands, w, depth, name, rounding) for name, w in named]


def on_route(call: Call, wanted: Expected, route: str) -> Expected:
    """What is expected of any route of a call, for the named one: the same, but where that rounds more."""
    if _rounds_more(call, route) is None:
        return wanted
    return dataclasses.replace(wanted, allowed=allowed_errors(call, wanted.arrays, wanted.outputs, route))


def _operands(call: Call, arrays: Mapping[str, Array]) -> dict[str, Array | None]:
    return dict.fromkeys(call.operands) | {name: widen(array) for name, array in arrays.items()}


def _rounds_more(call: Call, route: str) -> Route | None:
    """The named route where it rounds more than sums in f32 do."""
    named = (known for known in OPS[call.op].routes if known.name == route and not known.rounds_as_f32)
    return None if call.is_empty else next(named, None)


def run_call(
    call: Call,
    arrays: Mapping[str, Array],
    *,
    device: str | int = "auto",
    route: str | None = None,
    params: Params | None = None,
    replays: int = 1,
    constant: tuple[str, ...] = WEIGHTS,
    limits: Device | None = None,
    quirks: bool = True,
    fixed_push: bool | None = None,
) -> Ran:
    """Run one call on a device, over memory filled with NaN bits, ``replays`` times from the same recording.

    ``route`` and ``params`` force a route and set its parameters. Operands named in ``constant`` are loaded (and
    prepacked) once, as a model's weights are. ``limits`` plans with those of another device, ``quirks`` off without
    what is known of its driver; ``fixed_push`` is that of `Options`. Passes are off: the call runs as it is written.
    Raises what `vkconv.load` raises.
    """
    held = held_constant(arrays, constant)
    inputs = {name: array for name, array in arrays.items() if name not in held}
    forced = forcing(route, params)
    graph, options = call_graph(call, held), dataclasses.replace(forced, quirks=quirks, fixed_push=fixed_push)
    with Session(graph, device, options=options, poison=True, limits=limits) as session:
        outputs = [session.run(inputs) for _ in range(replays)]
        used = node_of(session.plan)
    return Ran(used.route, used.params, tuple(tuple(o[name] for name in call.outputs) for o in outputs))


def check_call(
    call: Call,
    arrays: Mapping[str, Array],
    *,
    device: str | int = "auto",
    route: str | None = None,
    params: Params | None = None,
    limits: Device | None = None,
    quirks: bool = True,
) -> tuple[Ran, Checked]:
    """Run a call twice from one recording and hold both runs to its reference, and the second to the bytes of the
    first, where its route is deterministic; arguments and errors as of `run_call` and `expect`."""
    ran = run_call(call, arrays, device=device, route=route, params=params, replays=2, limits=limits, quirks=quirks)
    return ran, hold(call, ran, expect(call, arrays, ran.route))


def hold(call: Call, ran: Ran, wanted: Expected) -> Checked:
    """Every replay of a call held to its reference, and to the bytes of the first one where its route is
    deterministic."""
    first, *others = ran.outputs
    checked = compare(call, first, wanted)
    deterministic = all(r.deterministic for r in OPS[call.op].routes if r.name == ran.route)
    for again in others:
        if not checked.ok:
            break
        if not deterministic:
            checked = compare(call, again, wanted)
            continue
        for name, one, other in zip(call.outputs, first, again, strict=True):
            if one.tobytes() != other.tobytes():
                checked = dataclasses.replace(checked, problem=f"{name} differs between two replays")
    return checked


def compare(call: Call, outputs: Sequence[Array], wanted: Expected) -> Checked:
    """How far outputs are from the reference; NaN and infinities must be where the reference has them."""
    worst: Checked | None = None
    for (name, spec), got, want, allowed in zip(
        call.outputs.items(), outputs, wanted.outputs, wanted.allowed, strict=True
    ):
        if got.shape != spec.dims or got.dtype != spec.dtype.numpy:
            found = f"{shape_str(got.shape)} of {got.dtype}"
            return Checked(None, None, allowed.relative, f"{name} is {found}, the call makes {spec}", name)
        errors = compare_output(name, got, np.asarray(want), allowed)
        if worst is None or (errors.problem and not worst.problem) or _excess(errors) > _excess(worst):
            worst = errors
    assert worst is not None  # every op has an output
    return worst


def compare_output(name: str, got: Array, want: Array, allowed: Tolerance) -> Checked:
    """How far one output is from its reference; ``name`` is what the words of a problem call it."""
    result, target = got.astype(np.float64), want.astype(np.float64)
    either = np.zeros(target.shape, bool) if allowed.may_overflow is None else allowed.may_overflow
    target = as_stored(target, got.dtype, either)
    finite = np.isfinite(target)
    with np.errstate(invalid="ignore"):
        same = np.where(finite, np.isfinite(result), (result == target) | (np.isnan(result) & np.isnan(target)))
    same |= either & ~np.isfinite(result)
    finite &= np.isfinite(result) | ~either
    found = Checked(
        None,
        None,
        allowed.relative,
        output=name,
        cosine=_cosine(result, target),
        nan=int(np.isnan(result).sum()),
        inf=int(np.isinf(result).sum()),
    )
    if not same.all():
        where = tuple(int(i) for i in np.argwhere(~same)[0])
        problem = f"{name}{list(where)} is {result[where]:g}, the reference {target[where]:g}"
        return dataclasses.replace(
            found,
            problem=f"{problem} ({int((~same).sum())} such elements)",
            worst=where,
            wrong=int((~same).sum()),
            pattern=pattern(~same),
        )
    error = np.abs(np.subtract(result, target, where=finite, out=np.zeros_like(target)))
    limit = allowed.absolute
    beyond = error > limit
    problem = ""
    worst = tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape)) if error.size else None
    if beyond.any():
        # How far an error is beyond what is allowed counts, not how large it is.
        excess = np.divide(error, limit, where=limit > 0, out=np.where(beyond, np.inf, 0.0))
        worst = where = tuple(int(i) for i in np.unravel_index(int(excess.argmax()), error.shape))
        problem = (
            f"{name}{list(where)} is {result[where]:g}, the reference {target[where]:g}, "
            f"{limit[where]:.2g} is allowed; {int(beyond.sum())} of {error.size} elements are off by more than that"
        )
    return dataclasses.replace(
        found,
        max_abs=float(error.max(initial=0.0)),
        max_rel=_relative(error, allowed),
        problem=problem,
        mean_abs=float(error.mean()) if error.size else 0.0,
        worst=worst,
        wrong=int(beyond.sum()),
        pattern=pattern(beyond),
    )


def as_stored(target: F64, dtype: np.dtype[np.generic], either: npt.NDArray[np.bool_]) -> F64:
    """A reference with infinities where it rounds to one in the output's type, but where that may be ``either``."""
    if not DType.of(dtype).is_float:
        return target
    with np.errstate(over="ignore", invalid="ignore"):
        rounds_to_inf = np.isinf(target.astype(dtype)) & ~either
        return np.where(rounds_to_inf, np.copysign(np.inf, target), target)


def _cosine(result: F64, target: F64) -> float | None:
    """The cosine of the angle between two arrays taken as vectors; None where one is zero or not finite."""
    if not (np.isfinite(result).all() and np.isfinite(target).all()):
        return None
    # Scaled first, so that no square overflows.
    largest = [float(np.abs(a).max(initial=0.0)) for a in (result, target)]
    if not all(largest):
        return None
    a, b = (array.ravel() / scale for array, scale in zip((result, target), largest, strict=True))
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def _relative(error: F64, allowed: Tolerance) -> float:
    """The largest error, less the floor, over its magnitude; over the error itself where the magnitude is 0."""
    beyond_floor = np.maximum(error - allowed.floor, 0.0)
    scale = np.where(allowed.magnitude > 0, allowed.magnitude, error)
    return float(np.divide(beyond_floor, scale, where=beyond_floor > 0, out=np.zeros_like(error)).max(initial=0.0))


def _excess(errors: Checked) -> float:
    return (errors.max_rel or 0.0) - errors.allowed
