"""Cases of llama.cpp's test-backend-ops as call strings: ``MUL_MAT(type_a=f16,type_b=f32,m=16,n=1,k=256,...)``.

ggml counts dimensions from the innermost. MUL_MAT multiplies the rows of b, n of k, with those of a, m of k; each
matrix of a, bs[0] times bs[1] of them, is used for nr[0] times nr[1] of b. Source: ggml-org/llama.cpp,
tests/test-backend-ops.cpp.
"""

import re
from collections.abc import Mapping

from vkconv.core import DType, UsageError, is_count, shape_str

_CASE = re.compile(r"(MUL_MAT|ADD|MUL|SOFT_MAX)\((.*)\)")
_FIELD = re.compile(r"(\w+)=(\[[^\]]*\]|[^,]*)(?:,|$)")
_DTYPES = ("f32", "f16", "bf16")


def is_line(text: str) -> bool:
    """True for a case of test-backend-ops."""
    return re.match(r"[A-Z_0-9]+\(", text.strip()) is not None


def calls(line: str) -> list[tuple[str, str]]:
    """The call of a case, and a note on what of it is left out. Raises UsageError naming what vkconv does not take."""
    text = line.strip()
    text = text[: text.rfind(")") + 1]  # what test-backend-ops says of it comes after
    match = _CASE.fullmatch(text)
    if match is None:
        raise UsageError(f"{line!r}: of llama.cpp's cases vkconv takes MUL_MAT, ADD, MUL and SOFT_MAX")
    fields = dict(_FIELD.findall(match[2]))
    try:
        return [_mul_mat(fields) if match[1] == "MUL_MAT" else _pointwise(match[1], fields)]
    except UsageError as error:
        raise UsageError(f"{line!r}: {error}") from None


def _mul_mat(fields: Mapping[str, str]) -> tuple[str, str]:
    m, n, k = (_numbers(fields, name, 1)[0] for name in "mnk")
    inner, outer = _numbers(fields, "bs", 2, "[1,1]")
    repeats = _numbers(fields, "nr", 2, "[1,1]")
    dtype, second = _dtype(fields, "type_a"), _dtype(fields, "type_b")
    rows = repeats[0] * repeats[1] * n
    batches = tuple(size for size in (outer, inner) if size > 1)
    notes = [f"b is {second}; measured with both in {dtype}"] if second != dtype else []
    notes += ["matrices that share one of a are rows of one"] if rows != n else []
    if fields.get("per", "[0,1,2,3]") != "[0,1,2,3]":
        notes.append(f"measured without the permutation {fields['per']}")
    text = f"matmul:a={shape_str((*batches, rows, k))},b={shape_str((*batches, m, k))},tb=1,dtype={dtype}"
    return text, "; ".join(notes)


def _pointwise(name: str, fields: Mapping[str, str]) -> tuple[str, str]:
    dtype = _dtype(fields, "type")
    shape = _numbers(fields, "ne", 4)[::-1]
    if name == "SOFT_MAX":
        masked = fields.get("mask", "0") not in ("0", "")
        return f"softmax:x={shape_str(shape)},dtype={dtype}", "measured without the mask" if masked else ""
    repeats = _numbers(fields, "nr", 4, "[1,1,1,1]")[::-1]
    a = tuple(size * times for size, times in zip(shape, repeats, strict=True))
    if any(size > 1 and times > 1 for size, times in zip(shape, repeats, strict=True)):
        raise UsageError(f"b of {fields['ne']} is repeated {fields['nr']}: vkconv broadcasts dimensions of 1")
    return f"{name.lower()}:a={shape_str(a)},b={shape_str(shape)},dtype={dtype}", ""


def _dtype(fields: Mapping[str, str], name: str) -> DType:
    text = fields.get(name, "f32")
    if text not in _DTYPES:
        raise UsageError(f"{name} is {text}; vkconv takes {', '.join(_DTYPES)}")
    return DType(text)


def _numbers(fields: Mapping[str, str], name: str, count: int, default: str = "") -> tuple[int, ...]:
    parts = [part.strip() for part in fields.get(name, default).strip("[]").split(",")]
    if len(parts) != count or not all(is_count(part) and int(part) for part in parts):
        raise UsageError(f"{name} is {fields.get(name, 'missing')}; it takes {count} whole number{'s' * (count > 1)}")
    return tuple(map(int, parts))
