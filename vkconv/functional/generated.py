"""The ops whose function says no more than their declaration does: made of that."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from vkconv.core import Array, DType, InputError, UsageError, did_you_mean
from vkconv.functional.arguments import activation_attrs, array, ints, number, one_int, window
from vkconv.functional.cache import run_all
from vkconv.graph.ir import AttrValue
from vkconv.ops.core.base import Attr, Op, Operand

# No array of a caller reaches the device, so that there is nothing to run.
HOST_ONLY = ("constant_of_shape", "eye_like", "range", "shape", "size")
# Ops under other names, in functions that are written by hand.
ELSEWHERE = {"arg_reduce": ("argmax", "argmin")}

_ACTIVATION = ("act", "act_a", "act_b")
_WORDS: dict[object, str] = {
    int: "SupportsIndex",
    float: "float",
    str: "str",
    bool: "bool",
    tuple[int, ...]: "Sizes",
    tuple[float, ...]: "Sequence[float]",
}
_RAISES = "Raises what `conv2d` raises."


def function_of(op: Op) -> Callable[..., Any]:
    """The function of an op: its operands in their order, then its attributes by their names."""
    signature = _signature(op)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            known = ", ".join(signature.parameters)
            unknown = [name for name in kwargs if name not in signature.parameters]
            hint = did_you_mean(unknown[0], signature.parameters) if unknown else ""
            raise UsageError(f"{op.name}: {error}{hint}; it takes {known}") from None
        given = bound.arguments
        route, device, out = given.get("route"), given.get("device"), given.get("out", "host")
        outputs = run_all(op.name, _operands(op, given), _attrs(op, given), route, device, out=out)
        return outputs if op.variadic_outputs or len(outputs) != 1 else outputs[0]

    call.__name__ = call.__qualname__ = op.name
    call.__module__ = __name__
    call.__doc__ = _doc(op)
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
    call.__annotations__["return"] = signature.return_annotation
    return call


def _on_device(op: Op) -> list[Operand]:
    return [operand for operand in op.operands if not operand.host]


def _pads_by_name(op: Op) -> bool:
    return {"padding", "auto_pad"} <= {attr.name for attr in op.attrs}


def _shown(op: Op) -> list[Attr]:
    """The attributes that a caller gives by their own names: not those of an activation, nor how padding is made."""
    names = [attr.name for attr in op.attrs]
    hidden = {*(_ACTIVATION if "act" in names else ()), *(("auto_pad",) if _pads_by_name(op) else ())}
    return [attr for attr in op.attrs if attr.name not in hidden]


def _signature(op: Op) -> inspect.Signature:
    """Annotations are words, so that help() shows them as the other functions' are."""
    named, placed = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters: list[inspect.Parameter] = []

    def add(name: str, kind: Any, annotation: str, default: Any = inspect.Parameter.empty) -> None:
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))

    operands = _on_device(op)
    for operand in operands:
        if operand.variadic:
            add(operand.name, inspect.Parameter.VAR_POSITIONAL, "npt.ArrayLike")
        elif operand.optional:
            add(operand.name, placed, "npt.ArrayLike | None", None)
        else:
            add(operand.name, placed, "npt.ArrayLike")
    # An attribute that must be given may go by its place; the others have names to be told apart by.
    all_must_be = not any(operand.optional or operand.variadic for operand in operands)
    for attr in sorted(_shown(op), key=lambda attr: attr.default is not None):
        word = "Sizes | str" if attr.name == "padding" and _pads_by_name(op) else _WORDS[attr.type]
        if attr.default is None:
            add(attr.name, placed if all_must_be else named, word)
        else:
            add(attr.name, named, word, attr.default)
    if any(attr.name == "act" for attr in op.attrs):
        add("activation", named, "Activation | None", None)
    add("route", named, "str | None", None)
    add("device", named, "str | int | None", None)
    add("out", named, "str", "host")
    several = op.variadic_outputs or len(op.outputs) > 1
    return inspect.Signature(parameters, return_annotation="tuple[Array, ...]" if several else "Array")


def _operands(op: Op, given: dict[str, Any]) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for operand in _on_device(op):
        value = given.get(operand.name)
        if operand.variadic:
            if not value:
                raise InputError(f"{op.name} needs at least one array")
            if len(value) == 1 and isinstance(value[0], list | tuple):
                raise InputError(
                    f"{op.name} takes arrays one by one, not a {type(value[0]).__name__} of {len(value[0])}: "
                    f"{op.name}(a, b), or {op.name}(*arrays)"
                )
            found |= {f"{operand.name}{i}": array(op.name, f"{operand.name}{i}", one) for i, one in enumerate(value)}
        elif value is not None:
            found[operand.name] = array(op.name, operand.name, value)
        elif not operand.optional:
            raise InputError(f"{op.name} needs {operand.name}; it is None")
    return found


def _attrs(op: Op, given: dict[str, Any]) -> dict[str, AttrValue]:
    attrs: dict[str, AttrValue] = {}
    for attr in _shown(op):
        if attr.name in given:
            if attr.name == "padding" and _pads_by_name(op) and isinstance(given["padding"], str):
                attrs["auto_pad"] = window(1, given["padding"], 1, 1)["auto_pad"]
            else:
                attrs[attr.name] = _value(attr, given[attr.name])
    if given.get("activation") is not None:
        attrs |= activation_attrs(given["activation"])
    return attrs


def _value(attr: Attr, value: Any) -> AttrValue:
    """A value in the type of its attribute; UsageError for one of another."""
    if attr.type is int:
        return one_int(attr.name, value)
    if attr.type is float:
        return number(attr.name, value)
    if attr.type is bool:
        if not isinstance(value, bool | np.bool_):
            raise UsageError(f"{attr.name} is {value!r}; it is True or False")
        return bool(value)
    if attr.type is str:
        if isinstance(value, str):
            return str(value)
        try:
            return str(DType.of(np.dtype(value)))
        except (TypeError, ValueError, InputError):
            raise UsageError(f"{attr.name} is {value!r}; it is a word") from None
    if attr.type == tuple[int, ...]:
        return ints(attr.name, value)
    several = value if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim) else (value,)
    return tuple(number(attr.name, one) for one in several)


def _doc(op: Op) -> str:
    says = op.doc or f"The op ``{op.name}``."
    several = op.variadic_outputs or len(op.outputs) > 1
    gives = f" Gives a tuple of {', '.join(op.outputs)}{' and so on' * op.variadic_outputs}." if several else ""
    return f"{says}\n\n{gives.strip()} {_RAISES}".replace("\n\n ", "\n\n")
