"""Import rules for random numbers. Each is a hash of its place and the seed, so that a plan gives the same ones in
every run, on every device and in every order; ONNX does not say which they are."""

import math
import zlib
from functools import partial

import numpy as np

from vkconv.core import DType
from vkconv.graph.onnx.elementwise import Rule
from vkconv.graph.onnx.proto import dtype_of
from vkconv.graph.onnx.view import NodeView

# The integer hash "lowbias32" (C. Wellons, https://nullprogram.com/blog/2018/07/31/): shifts and factors in turn.
# Places are spread by the golden ratio first, so that neighbouring seeds have no numbers in common.
_HASH = ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 0))
_GOLDEN = 0x9E3779B9
_FRACTION_BITS = 24  # what f32 holds of a number below 1


def _i32(n: NodeView, word: int) -> str:
    """The constant with the bits of a word."""
    return n.number(int(np.uint32(word).view(np.int32)), DType.I32)


def seed_of(n: NodeView) -> int:
    """The seed that the node gives, or one of its own from its name."""
    if n.has_attr("seed"):
        return int(np.float32(n.attr_float("seed", 0.0)).view(np.uint32))
    return zlib.crc32(n.name.encode())


def uniform(n: NodeView, shape: str, seed: int) -> str:
    """As many numbers as a shape has, f32 of 24 bits, from 0 to below 1."""
    size = n.emit("reduce", shape, op="prod", axes=(0,), keepdims=False)
    end = n.emit("cast", size, to="i32")
    value = n.emit("range", n.number(0, DType.I32), end, n.number(1, DType.I32), dtype="i32")
    # Two rounds: the second one has the seed's own bits spread over all of the word.
    for key in (seed, (seed * _GOLDEN + 1) & 0xFFFFFFFF):
        value = n.emit("add", n.emit("mul", value, _i32(n, _GOLDEN)), _i32(n, key))
        for shift, factor in _HASH:
            mask = _i32(n, (1 << (32 - shift)) - 1)
            low = n.emit("bit_and", n.emit("shift_right", value, _i32(n, shift)), mask)
            value = n.emit("bit_xor", value, low)
            if factor:
                value = n.emit("mul", value, _i32(n, factor))
    dropped = 32 - _FRACTION_BITS
    high = n.emit("shift_right", value, _i32(n, dropped))
    whole = n.emit("cast", n.emit("bit_and", high, _i32(n, (1 << _FRACTION_BITS) - 1)), to="f32")
    flat = n.emit("mul", whole, n.number(2.0**-_FRACTION_BITS, DType.F32))
    return n.emit("reshape", flat, shape, allowzero=True)


def _normal(n: NodeView, shape: str) -> str:
    """Of mean 0 and deviation 1, by Box and Muller."""
    seed = seed_of(n)
    above_zero = n.emit("sub", n.number(1.0, DType.F32), uniform(n, shape, seed))
    radius = n.emit("sqrt", n.emit("mul", n.emit("log", above_zero), n.number(-2.0, DType.F32)))
    angle = n.emit("mul", uniform(n, shape, seed ^ _GOLDEN), n.number(2 * math.pi, DType.F32))
    return n.emit("mul", radius, n.emit("cos", angle))


def _drawn(normal: bool, like: bool, n: NodeView) -> None:
    dtype = dtype_of(n.attr_int("dtype", 1), "makes") if n.has_attr("dtype") or not like else n.dtype(0)
    if not dtype.is_float:
        n.refuse(f"it makes {dtype}; random numbers are floats")
    shape = n.emit("shape", n.input(0)) if like else n.ints(*n.attr_ints("shape"))
    if normal:
        mean, scale = n.attr_float("mean", 0.0), n.attr_float("scale", 1.0)
        value = _normal(n, shape)
    else:
        mean, high = n.attr_float("low", 0.0), n.attr_float("high", 1.0)
        scale, value = high - mean, uniform(n, shape, seed_of(n))
    scaled = n.emit("mul", value, n.number(scale, DType.F32))
    moved = n.emit("add", scaled, n.number(mean, DType.F32))
    n.finish("cast", moved, to=str(dtype))


def _bernoulli(n: NodeView) -> None:
    to = dtype_of(n.attr_int("dtype", 0), "makes") if n.has_attr("dtype") else n.dtype(0)
    drawn = uniform(n, n.emit("shape", n.input(0)), seed_of(n))
    p = n.input(0) if n.dtype(0) is DType.F32 else n.emit("cast", n.input(0), to="f32")
    n.finish("cast", n.emit("less", drawn, p), to=str(to))


def _multinomial(n: NodeView) -> None:
    """The first class up to which the chances add up to more than a number from 0 to 1."""
    to = dtype_of(n.attr_int("dtype", 6), "makes")
    if to not in (DType.I32, DType.I64):
        n.refuse(f"it makes {to}; ONNX has int32 and int64")
    logits = n.input(0) if n.dtype(0) is DType.F32 else n.emit("cast", n.input(0), to="f32")
    chances = n.emit("cumulative", n.emit("softmax", logits, axis=-1), op="sum", axis=(-1,))
    chances = n.emit("slice", chances, starts=(0,), ends=(-1,), axes=(1,))  # the last class takes what is left
    batch = n.emit("shape", logits, start=0, end=1)
    shape = n.emit("concat", batch, n.ints(n.attr_int("sample_size", 1)), axis=0)
    drawn = n.emit("unsqueeze", uniform(n, shape, seed_of(n)), axes=(2,))
    passed = n.emit("greater_equal", drawn, n.emit("unsqueeze", chances, axes=(1,)))
    counted = n.emit("reduce", n.emit("cast", passed, to="i32"), op="sum", axes=(2,), keepdims=False)
    n.finish("cast", counted, to=str(to))


def dropped(n: NodeView, ratio: str) -> None:
    """Dropout as in training: what stays is scaled, so that its mean stays too."""
    shape = n.emit("shape", n.input(0))
    seed = n.attr_int("seed", 0) & 0xFFFFFFFF if n.has_attr("seed") else seed_of(n)
    of_f32 = n.emit("cast", ratio, to="f32")
    stays = n.emit("greater_equal", uniform(n, shape, seed), of_f32)
    one = n.number(1.0, DType.F32)
    scale = n.emit("cast", n.emit("div", one, n.emit("sub", one, of_f32)), to=str(n.dtype(0)))
    n.write(0, "where", stays, n.emit("mul", n.input(0), scale), n.number(0.0, n.dtype(0)))
    n.write(1, "identity", stays)


RULES: dict[str, Rule] = {
    "Bernoulli": _bernoulli,
    "Multinomial": _multinomial,
    "RandomNormal": partial(_drawn, True, False),
    "RandomNormalLike": partial(_drawn, True, True),
    "RandomUniform": partial(_drawn, False, False),
    "RandomUniformLike": partial(_drawn, False, True),
}
