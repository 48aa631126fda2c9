"""The routes of recurrence: the whole sequence in one launch, or a launch a step."""

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, bytes_str, ceil_div
from vkconv.cost import launch_cycles
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.base import holds_workgroup, most_shared_bytes, over_invocations, over_workgroups
from vkconv.ops.core.requirements import loop_iterations, operands_in
from vkconv.ops.recurrence.cells import CELLS, FUNCTIONS
from vkconv.policy import Policy
from vkconv.program import Argument, Dispatch, Program, Word
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route

_STEP = Shader(shaders.recurrence.RECURRENCE_STEP, DType.F32)
_GATED_STEP = Shader(shaders.recurrence.RECURRENCE_STEP, DType.F32, (("GATED", ""),))
_SEQUENCE = Shader(shaders.recurrence.RECURRENCE_SEQUENCE, DType.F32)
# Bytes of recurrent weights that a compute unit multiplies while one launch takes its turn.
_BYTES_A_CYCLE = Policy("recurrence.bytes_a_cycle", float)
# The least and the most invocations of a workgroup, by default.
_WORKGROUPS = Policy("recurrence.workgroups", tuple[int, int])
_LOCALS = (64, 256, 128, 32, 8)
_LANES = (1, 2, 4, 8)


def _hidden(call: Call) -> int:
    return int(call.shape("r")[1])


def _reset_first(call: Call) -> bool:
    """Whether the reset of a GRU comes before the product, which then waits for all gates."""
    return call["cell"] == "gru" and not call["linear_before_reset"]


def _push(call: Call) -> dict[str, Argument]:
    steps, directions, batch, hidden = call.shape("y")
    a, b = ((*call[name], *(0.0,) * (3 - len(call[name]))) for name in ("act_a", "act_b"))
    return {
        "steps": steps,
        "batch": batch,
        "hidden": hidden,
        "directions": directions,
        "units": directions * batch * hidden,
        "clip_at": float(call["clip"]),
        "act_a": a,
        "act_b": b,
    }


def _constants(call: Call, params: Params) -> dict[str, Word]:
    names = call["functions"].split("-")
    return {
        "CELL": CELLS[call["cell"]].id,
        **{f"FUNCTION{i}": FUNCTIONS[names[i]] if i < len(names) else 0 for i in range(3)},
        "REVERSED": call["direction"] == "reverse",
        "HAS_LENGTHS": call.has("lengths"),
        "HAS_INITIAL": call.has("initial"),
        "CLIP": float(call["clip"]) > 0,
        "LANES": params["lanes"],
    }


def _buffers(call: Call) -> dict[str, str | None]:
    given = {name: name if call.has(name) else None for name in ("initial", "lengths")}
    return {"x": "x", "r": "r", **given, "y": "y", "state": "state"}


def _extra(call: Call) -> tuple[dict[str, str | None], dict[str, Word]]:
    constants: dict[str, Word] = {"HAS_EXTRA": call.has("extra"), "INPUT_FORGET": bool(call["input_forget"])}
    return {"extra": "extra" if call.has("extra") else None}, constants


def _local(call: Call, device: Device) -> tuple[int, ...]:
    """Workgroup sizes, the default first: of those that the policy allows, one with an invocation for each unit of a
    sequence."""
    legal = [size for size in _LOCALS if holds_workgroup(device, size, 16 * size)]
    enough = [size for size in sorted(legal) if size >= min(_hidden(call), max(legal))]
    least, most = _WORKGROUPS.of(device)
    best = max(least, min(most, enough[0]))
    return (best, *(size for size in legal if size != best))


def _params(call: Call, device: Device) -> Legal:
    return {"local": _local(call, device), "lanes": _LANES}


def _sequence_params(call: Call, device: Device) -> Legal:
    legal = _params(call, device)
    fit = tuple(size for size in legal["local"] if _shared_bytes(call, size) <= most_shared_bytes(device))
    return {**legal, "local": fit}


def _steps_program(call: Call, device: Device, params: Params) -> Program:
    steps, directions, batch, hidden = call.shape("y")
    units, lanes = directions * batch * hidden, params["lanes"]
    grid = over_invocations(units * lanes, params["local"], device)
    push, constants, buffers = _push(call), _constants(call, params), _buffers(call)
    loops = ceil_div(hidden, lanes) * CELLS[call["cell"]].gates
    shared = 16 * params["local"]

    def launch(shader: Shader, step: int, more: dict[str, str | None], and_more: dict[str, Word]) -> Dispatch:
        arguments = {**push, "step_at": step}
        return Dispatch(shader, {**buffers, **more}, *grid, arguments, {**constants, **and_more}, shared, loops)

    if not _reset_first(call):
        return Program(tuple(launch(_STEP, step, *_extra(call)) for step in range(steps)))
    made = (
        launch(_GATED_STEP, step, {"gated": "gated"}, {"PHASE": phase}) for step in range(steps) for phase in (0, 1)
    )
    return Program(tuple(made), scratch={"gated": 4 * 2 * units})


def _shared_bytes(call: Call, local: int) -> int:
    return 4 * 4 * _hidden(call) + 16 * local


def _sequence_loops(call: Call, local: int, lanes: int) -> int:
    hidden, gates = _hidden(call), CELLS[call["cell"]].gates
    return int(call.shape("y")[0]) * ceil_div(hidden, max(1, local // lanes)) * ceil_div(hidden, lanes) * gates


def _sequence_program(call: Call, device: Device, params: Params) -> Program:
    _, directions, batch, hidden = call.shape("y")
    local, lanes = params["local"], params["lanes"]
    extra, has_extra = _extra(call)
    constants = {**_constants(call, params), **has_extra, "RESET_FIRST": _reset_first(call), "HIDDEN": hidden}
    grid = over_workgroups(directions * batch, local, device)
    shared, loops = _shared_bytes(call, local), _sequence_loops(call, local, lanes)
    return Program((Dispatch(_SEQUENCE, {**_buffers(call), **extra}, *grid, _push(call), constants, shared, loops),))


def _weights_bytes(call: Call) -> int:
    """Bytes of recurrent weights that each step of a sequence reads."""
    return int(call.shape("r")[1] * call.shape("r")[2]) * call.specs["r"].dtype.nbytes


def _bytes_in_a_launch(device: Device) -> float:
    """Bytes that one compute unit multiplies in the time of one more launch."""
    return launch_cycles(device) * _BYTES_A_CYCLE.of(device)


_FLOAT_X = operands_in("x", DType.F32)
_IN_A_LAUNCH = Requirement(
    "recurrent weights that a compute unit multiplies in the time of a launch",
    lambda call, device: _weights_bytes(call) <= _bytes_in_a_launch(device),
    lambda call, device: f"{bytes_str(_weights_bytes(call))}, {bytes_str(int(_bytes_in_a_launch(device)))} at most",
)
_SHARED = Requirement(
    "shared memory for the state of a sequence",
    lambda call, device: bool(_sequence_params(call, device)["local"]),
    lambda call, device: f"{_hidden(call)} units, {bytes_str(most_shared_bytes(device))}",
)

ROUTES = (
    Route(
        "sequence",
        _sequence_program,
        (_SEQUENCE,),
        "a workgroup for each sequence and direction makes all steps in one launch, the state in shared memory",
        must=(_FLOAT_X, _SHARED, loop_iterations(lambda call, device: _sequence_loops(call, min(_LOCALS), 1))),
        prefer=(_IN_A_LAUNCH,),
        params=_sequence_params,
    ),
    Route(
        "steps",
        _steps_program,
        (_STEP, _GATED_STEP),
        "a launch a step, in which all units of all sequences are made side by side; two where a GRU's reset comes "
        "before the product, which waits for it",
        must=(_FLOAT_X, loop_iterations(lambda call, device: _hidden(call) * CELLS[call["cell"]].gates)),
        params=_params,
    ),
)
