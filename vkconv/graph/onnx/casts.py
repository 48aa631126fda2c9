"""Import rules for casts, and what the others need of them for element types that no kernel has."""

import math
from collections.abc import Callable

from vkconv.core import DType
from vkconv.graph.onnx.narrow import NARROW, Narrow
from vkconv.graph.onnx.proto import dtype_of
from vkconv.graph.onnx.view import NodeView


def decode(n: NodeView, value: str, narrow: Narrow) -> str:
    """A value of the type as f32: the number of each byte looked up, an integer as it is."""
    if not narrow.is_float:
        return n.emit("cast", value, to="f32")
    table = n.number(narrow.values(), DType.F32)
    return n.emit("gather", table, n.emit("cast", value, to="i32"), axis=0)


def encode(n: NodeView, value: str, narrow: Narrow, saturate: bool = True, round_mode: str = "up") -> str:
    """A value of f32 in the type. What is too large is the largest number where it is to ``saturate``, else infinity or
    NaN; of integers the lowest bits count, as in ONNX's own cast."""
    if not narrow.is_float:
        return lowest_bits(n, n.emit("cast", value, to="i32"), narrow)
    bits = n.emit("bitcast", value, to="i32")
    size = n.emit("bit_and", bits, _i32(n, 0x7FFFFFFF))
    if narrow.is_scale:
        return n.emit("cast", _exponent(n, size, saturate, round_mode), to="u8")
    code = n.emit("where", n.emit("less", size, _i32(n, _least_normal(narrow))), *_magnitudes(n, value, size, narrow))
    most = _i32(n, narrow.largest)
    if saturate or narrow.is_four_bits:  # which have neither infinity nor NaN
        code = n.emit("minimum", code, most)
    else:
        beyond = narrow.largest + 1 if narrow.has_inf else narrow.nan
        code = n.emit("where", n.emit("greater", code, most), _i32(n, beyond), code)
    shifted = n.emit("shift_right", bits, _i32(n, 28 if narrow.is_four_bits else 24))
    sign = n.emit("bit_and", shifted, _i32(n, 8 if narrow.is_four_bits else 128))
    if not narrow.has_negative_zero:
        sign = n.emit("where", n.emit("equal", code, _i32(n, 0)), _i32(n, 0), sign)
    code = n.emit("bit_or", code, sign)
    return n.emit("cast", n.emit("where", n.emit("is_nan", value), _i32(n, narrow.nan), code), to="u8")


def lowest_bits(n: NodeView, value: str, narrow: Narrow) -> str:
    """The integer in the lowest bits of a value of i32."""
    kept = n.emit("bit_and", value, _i32(n, (1 << narrow.bits) - 1))
    if narrow.low:
        kept = n.emit("sub", n.emit("bit_xor", kept, _i32(n, -narrow.low)), _i32(n, -narrow.low))
    return n.emit("cast", kept, to=str(narrow.stored))


def _i32(n: NodeView, value: int) -> str:
    return n.number(value, DType.I32)


def _least_normal(narrow: Narrow) -> int:
    """The bits of the least f32 whose exponent the type has."""
    return (127 - narrow.bias + 1) << 23


def _magnitudes(n: NodeView, value: str, size: str, narrow: Narrow) -> tuple[str, str]:
    """The bits without the sign of numbers below the least normal one, and of others: rounded as a multiple of the
    least number there is, and by half of what the mantissa loses."""
    unit = math.ldexp(1.0, narrow.bias + narrow.mantissa - 1)
    steps = n.emit("mul", n.emit("abs", value), n.number(unit, DType.F32))
    steps = n.emit("clip", steps, a=0.0, b=float(2 << narrow.mantissa))
    low = n.emit("cast", n.emit("round", steps), to="i32")
    lost = 23 - narrow.mantissa
    even = n.emit("bit_and", n.emit("shift_right", size, _i32(n, lost)), _i32(n, 1))
    rounded = n.emit("add", n.emit("add", size, _i32(n, (1 << (lost - 1)) - 1)), even)
    high = n.emit("sub", n.emit("shift_right", rounded, _i32(n, lost)), _i32(n, (127 - narrow.bias) << narrow.mantissa))
    return low, high


def _exponent(n: NodeView, size: str, saturate: bool, round_mode: str) -> str:
    """The exponent of f32, rounded; NaN and infinity are NaN."""
    whole = n.emit("shift_right", size, _i32(n, 23))
    if round_mode == "down":
        return whole
    if round_mode not in ("up", "nearest"):
        n.refuse(f"round_mode={round_mode!r}; ONNX has up, down and nearest")
    # Half a step upwards, but from the least exponent, which is even.
    above = 0 if round_mode == "up" else 0x3FFFFF
    fraction = n.emit("bit_and", size, _i32(n, 0x7FFFFF))
    up = n.emit("cast", n.emit("greater", fraction, _i32(n, above)), to="i32")
    if round_mode == "nearest":
        tie = n.emit("equal", size, _i32(n, 0x400000))
        up = n.emit("where", tie, _i32(n, 0), up)
    most = 0xFE if saturate else 0xFF
    return n.emit("maximum", whole, n.emit("minimum", n.emit("add", whole, up), _i32(n, most)))


def _cast(n: NodeView) -> None:
    to = n.attr_int("to", 0)
    _between(n, NARROW.get(to), "" if to in NARROW else str(dtype_of(to, "casts to")))


def _cast_like(n: NodeView) -> None:
    _between(n, n.narrow(1), str(n.dtype(1)))


def _between(n: NodeView, to: Narrow | None, dtype: str) -> None:
    """From any type to a narrow one, or to one that kernels have."""
    saturate, round_mode = n.attr_flag("saturate", True), n.attr_str("round_mode", "up")
    source = n.narrow(0)
    if source is not None and source == to:
        n.finish("identity", n.input(0))
    elif source is not None and source.is_float:
        value = decode(n, n.input(0), source)
        _last(n, encode(n, value, to, saturate, round_mode) if to else n.emit("cast", value, to=dtype))
    elif to is None:
        n.finish("cast", n.input(0), to=dtype)
    elif to.is_float:
        _last(n, encode(n, n.emit("cast", n.input(0), to="f32"), to, saturate, round_mode))
    else:
        _last(n, lowest_bits(n, n.emit("cast", n.input(0), to="i32"), to))


def _last(n: NodeView, value: str) -> None:
    n.finish("identity", value)


RULES: dict[str, Callable[[NodeView], None]] = {"Cast": _cast, "CastLike": _cast_like}
