"""Element types that no kernel has: floats of 8 and 4 bits, integers of 4 and 2. In a graph they are bytes, of floats
their bits, of integers their values; what computes with them decodes them first.

Rounding and overflow are those of ONNX's Cast (https://onnx.ai/onnx/technical/float8.html, .../float4.html): to the
nearest, of two the even one.
"""

import dataclasses
import math
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from vkconv.core import Array, DType

# Metadata of a graph, by the name of an input or output: what its bytes are.
ELEMENTS = "onnx.elements."


@dataclasses.dataclass(frozen=True, slots=True)
class Narrow:
    """A type by ONNX's name, the one that numpy has for it, and of an integer how many bits it has. Of a float: how
    many of them are the mantissa's, the exponent's bias, the largest number and NaN as bits."""

    name: str
    numpy: np.dtype[np.generic]
    bits: int = 0
    mantissa: int = 0
    bias: int = 0
    largest: int = 0
    nan: int = 0
    has_inf: bool = False
    has_negative_zero: bool = True

    @property
    def is_float(self) -> bool:
        return not self.bits

    @property
    def is_scale(self) -> bool:
        """Whether it is nothing but an exponent."""
        return self.name == "float8e8m0"

    @property
    def low(self) -> int:
        """The least value of an integer."""
        return -(1 << (self.bits - 1)) if self.name.startswith("int") else 0

    @property
    def stored(self) -> DType:
        """What it is in a graph."""
        return DType.I8 if self.bits and self.low else DType.U8

    @property
    def is_four_bits(self) -> bool:
        """Whether it is a float of 4 bits."""
        return self.name == "float4e2m1"

    @property
    def per_byte(self) -> int:
        """How many of them a byte of a file has."""
        return 8 // self.bits if self.bits else 1 + self.is_four_bits

    def unpacked(self, packed: Any, shape: tuple[int, ...]) -> Array:
        """What the bytes of a file hold, the first in the lowest bits, as the graph has it."""
        bits = 8 // self.per_byte
        parts = (packed[:, None] >> np.arange(0, 8, bits, dtype=np.uint8)) & ((1 << bits) - 1)
        flat: Array = parts.reshape(-1)[: math.prod(shape)].reshape(shape)
        signed: Array = (flat.astype(np.int8) ^ -self.low) + self.low
        return signed.astype(self.stored.numpy)

    def to_stored(self, array: Array) -> Array:
        """An array of its numpy type as the graph has it."""
        return array.view(np.uint8) if self.is_float else array.astype(self.stored.numpy)

    def from_stored(self, array: Array) -> Array:
        """What the graph has as an array of its numpy type."""
        return array.view(self.numpy) if self.is_float else array.astype(self.numpy)

    def values(self) -> Array:
        """The value of every byte, as f32."""
        return np.arange(256, dtype=np.uint8).view(self.numpy).astype(np.float32)


def _float(name: str, mantissa: int, bias: int, largest: int, nan: int, **flags: bool) -> Narrow:
    endings = {"float8e4m3fn": "_e4m3fn", "float8e5m2": "_e5m2", "float8e4m3fnuz": "_e4m3fnuz"}
    endings |= {"float8e5m2fnuz": "_e5m2fnuz", "float4e2m1": "_e2m1fn", "float8e8m0": "_e8m0fnu"}
    numpy = np.dtype(getattr(ml_dtypes, name[: len("float8")] + endings[name]))
    return Narrow(name, numpy, mantissa=mantissa, bias=bias, largest=largest, nan=nan, **flags)


_T = onnx.TensorProto
_KNOWN = (
    _float("float8e4m3fn", 3, 7, 0x7E, 0x7F),
    _float("float8e5m2", 2, 15, 0x7B, 0x7E, has_inf=True),
    _float("float8e4m3fnuz", 3, 8, 0x7F, 0x80, has_negative_zero=False),
    _float("float8e5m2fnuz", 2, 16, 0x7F, 0x80, has_negative_zero=False),
    _float("float8e8m0", 0, 127, 0xFE, 0xFF),
    _float("float4e2m1", 1, 1, 7, 8),
    *(Narrow(name, np.dtype(getattr(ml_dtypes, name)), int(name[-1])) for name in ("int4", "uint4", "int2", "uint2")),
)
# By ONNX's numbers: an older onnx has fewer of them.
NARROW: dict[int, Narrow] = {getattr(_T, t.name.upper()): t for t in _KNOWN if hasattr(_T, t.name.upper())}
BY_NAME = {narrow.name: narrow for narrow in NARROW.values()}
# Ops of ONNX that give values of these types as they are, or know them.
TAKERS = frozenset(
    {
        *("Cast", "CastLike", "Constant", "DequantizeLinear", "QuantizeLinear"),
        *("Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Shape", "Size", "Slice", "Split"),
        *("Squeeze", "Tile", "Transpose", "Unsqueeze"),
    }
)
