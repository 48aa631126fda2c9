"""Import rules of what a model keeps between its runs: each variable is an input of the graph, and what it becomes an
output, so that who runs it holds the state."""

from collections.abc import Mapping

from vkconv.core import ModelError
from vkconv.graph.ir import TensorSpec
from vkconv.graph.tflite.view import OpView, Rule, State


def _handle(n: OpView) -> None:
    if not n.op.variable:
        raise ModelError(f"VAR_HANDLE {n.title!r} names no variable; the file is damaged")
    n.builder.handles[n.op.outputs[0]] = n.op.variable


def _variable(n: OpView) -> str:
    name = n.builder.handles.get(n.index(0))
    if name is None:
        n.refuse("its variable is one that is computed; vkconv has those of VAR_HANDLE")
    return name


def _read(n: OpView) -> None:
    name, states, tensor = _variable(n), n.builder.states, n.output()
    if name not in states:
        if tensor.dtype is None or any(d is None for d in tensor.dims):
            n.refuse(f"its variable {name!r} is of open shape, or of a type that vkconv does not have")
        spec = TensorSpec(tuple(d for d in tensor.dims if d is not None), tensor.dtype)
        initial = n.builder.model.initial.get(name)
        if initial is not None and (initial.shape != spec.dims or len(set(initial.reshape(-1).tolist())) > 1):
            n.refuse(f"its variable {name!r} begins with other numbers than one; vkconv has those that begin with one")
        given = n.builder.fresh(name)
        states[name] = State((given, spec), given)
    n.finish_stored(states[name].value)


def _assign(n: OpView) -> None:
    """What is assigned is what is read from then on, in this run too."""
    name, value = _variable(n), n.stored(1)
    if name in n.builder.states:
        n.builder.states[name].value = value
    else:  # no run depends on the one before
        n.builder.states[name] = State(None, value)


def _once(n: OpView) -> None:
    """The reader has what it assigns."""


RULES: Mapping[str, Rule] = {
    "ASSIGN_VARIABLE": _assign,
    "CALL_ONCE": _once,
    "READ_VARIABLE": _read,
    "VAR_HANDLE": _handle,
}
