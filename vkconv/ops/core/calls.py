"""The text form of a call: parsing and printing, exact inverses of each other on canonical text."""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import get_args

from vkconv.call import Call
from vkconv.core import (
    MAX_RANK,
    DType,
    GraphError,
    UsageError,
    VkconvError,
    did_you_mean,
    shape_problem,
    shape_str,
)
from vkconv.graph.ir import AttrValue, TensorSpec
from vkconv.ops.core.base import Attr, Op


def parse_shape(text: str) -> tuple[int, ...]:
    """``1x64x56x56`` as a tuple; ``scalar`` as (); raises UsageError naming the text."""
    if text == "scalar":
        return ()
    try:
        dims = tuple(int(part) for part in text.split("x"))
    except ValueError:
        raise UsageError(f"{text!r} is not a shape; write dimensions as 1x64x56x56") from None
    if any(d < 0 for d in dims):
        raise UsageError(f"shape {text!r} has a negative dimension")
    if max(dims) >= 1 << 63 or len(dims) > MAX_RANK:
        raise UsageError(f"shape {text[:60]!r} is none: at most {MAX_RANK} dimensions, each below 2^63")
    return dims


def parse_call(text: str, ops: Mapping[str, Op]) -> Call:
    """The call that a string such as ``conv2d:x=1x64x56x56,w=128x64x3x3,p=1`` describes.

    Operands are shapes, with ``:dtype`` where one differs from the call's ``dtype=`` (f32). Attributes go by
    name or short key. Raises UsageError for words that do not exist and GraphError for calls that make no sense.
    """
    name, _, rest = text.strip().partition(":")
    if name not in ops:
        raise UsageError(f"{text!r}: there is no op {name!r}{did_you_mean(name, ops)}; vkconv ops lists them")
    op = ops[name]
    fields: dict[str, str] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise UsageError(f"{text!r}: {part!r} is not one key=value; write {name}:KEY=VALUE,KEY=VALUE")
        if key in fields:
            raise UsageError(f"{text!r}: {key} is given twice, as {fields[key]} and {value}")
        fields[key] = value
    dtype = _parse_dtype(fields.pop("dtype", "f32"), text)
    specs: dict[str, TensorSpec | None] = {}
    for operand in op.operands:
        if operand.host:
            continue
        if operand.variadic:
            i = 0
            while f"{operand.name}{i}" in fields:
                specs[f"{operand.name}{i}"] = _parse_spec(fields.pop(f"{operand.name}{i}"), dtype, text)
                i += 1
        else:
            given = operand.name in fields
            specs[operand.name] = _parse_spec(fields.pop(operand.name), dtype, text) if given else None
    attrs: dict[str, AttrValue] = {}
    for key, value in fields.items():
        attr = op.attr(key, value)
        if attr.name in attrs:
            raise UsageError(f"{text!r}: {attr.name} is given twice, as {attr.name} and as {attr.key}")
        attrs[attr.name] = _parse_attr(attr, value, text)
    try:
        return op.call(specs, attrs)
    except GraphError as error:
        raise GraphError(f"{text}: {error}") from None


def format_call(call: Call, ops: Mapping[str, Op]) -> str:
    """The canonical string of a call: operands in order, attributes that differ from their default, dtype."""
    op = ops[call.op]
    floats = [s.dtype for s in call.operands.values() if s is not None and s.dtype.is_float]
    dtype = floats[0] if floats else DType.F32
    parts = [
        f"{name}={shape_str(spec.shape)}" + ("" if spec.dtype == dtype else f":{spec.dtype}")
        for name, spec in call.operands.items()
        if spec is not None
    ]
    parts += [
        f"{attr.key}={_format_attr(call.attrs[attr.name])}"
        for attr in op.attrs
        if attr.name in call.attrs and _differs(call.attrs[attr.name], attr.default)
    ]
    return f"{op.name}:{','.join([*parts, f'dtype={dtype}'])}"


def _differs(value: AttrValue, default: AttrValue | None) -> bool:
    """Whether it is another value than the default: -0.0 is another than 0.0, which it equals."""
    return value != default or str(value).startswith("-") != str(default).startswith("-")


def in_dtype(text: str, dtype: DType) -> str:
    """The text of a call with this dtype in place of the one it has."""
    return ",".join([*(field for field in text.split(",") if not field.startswith("dtype=")), f"dtype={dtype}"])


def typed_cases(op: Op, dtypes: Collection[DType] = tuple(DType)) -> Iterator[Call]:
    """The op's cases as they are written, and in each of these element types with which they are legal."""
    seen: set[str] = set()
    for case in op.cases:
        shapes = ",".join(part for part in case.split(",") if not part.startswith("dtype="))
        for text in (case, *(f"{shapes},dtype={dtype}" for dtype in dtypes)):
            if text not in seen:
                seen.add(text)
                with contextlib.suppress(VkconvError):
                    yield parse_call(text, {op.name: op})


def _parse_dtype(value: str, text: str) -> DType:
    try:
        return DType(value)
    except ValueError:
        raise UsageError(f"{text!r}: {value!r} is no dtype{did_you_mean(value, [str(d) for d in DType])}") from None


def _parse_spec(value: str, dtype: DType, text: str) -> TensorSpec:
    shape, colon, own = value.partition(":")
    spec = TensorSpec(parse_shape(shape), _parse_dtype(own, text) if colon else dtype)
    if problem := shape_problem(spec.dims, spec.dtype):
        raise UsageError(f"{text!r}: {shape} cannot be: {problem}")
    return spec


def _parse_attr(attr: Attr, value: str, text: str) -> AttrValue:
    try:
        if attr.type is bool:
            return bool(int(value))
        if attr.type is int:
            return int(value)
        if attr.type is float:
            return float(value)
        if attr.type is str:
            return value
        number = float if attr.type == tuple[float, ...] else int
        return tuple(number(part) for part in value.split("x")) if value else ()
    except ValueError:
        raise UsageError(f"{text!r}: {attr.name}={value!r} does not read as {_words(attr)}") from None


def _words(attr: Attr) -> str:
    element = get_args(attr.type)[0] if get_args(attr.type) else attr.type
    many = f"numbers such as {'2x3' if element is int else '0.5x2'}"
    return many if get_args(attr.type) else {bool: "0 or 1", int: "an integer"}.get(element, "a number")


def _format_attr(value: AttrValue) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, tuple):
        return "x".join(repr(v) for v in value)
    return str(value)
