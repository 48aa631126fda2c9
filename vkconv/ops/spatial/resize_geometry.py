"""Where resize samples: sizes, scales and coordinate modes of ONNX Resize as exact fractions along each axis.

Every coordinate mode is a fraction (step * o + offset) / unit of integers in the output index o. Kernels and
reference compute with it exactly: rounding modes decide at ties, and f32 scales put most indices near one.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from vkconv.call import Call
from vkconv.core import GraphError, shape_str
from vkconv.graph.ir import AttrValue
from vkconv.ops.core import shapes
from vkconv.ops.core.base import F64

MODES = ("nearest", "linear", "cubic")  # index is the constant MODE
COORDINATES = (
    "half_pixel",
    "asymmetric",
    "align_corners",
    "pytorch_half_pixel",
    "half_pixel_symmetric",
    "tf_crop_and_resize",
)
POLICIES = ("stretch", "not_larger", "not_smaller")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "ceil_where_smaller")
# Scales and corners of regions are floats: the fractions that they are taken for have no larger denominator.
_MOST_DENOMINATOR = 1 << 12
_HALF = Fraction(1, 2)


@dataclasses.dataclass(frozen=True)
class Axis:
    """One axis: ``n_in`` elements to ``n_out``, ``pixel`` source pixels per output pixel; output index o looks at
    source coordinate ``slope`` o + ``start``."""

    n_in: int
    n_out: int
    pixel: Fraction
    slope: Fraction
    start: Fraction

    @property
    def is_identity(self) -> bool:
        return self.n_in == self.n_out and self.slope == 1 and self.start == 0

    def rounded(self, rounding: str) -> str:
        """One of `ROUNDINGS` as it is along this axis: Resize 10 rounds up where an axis becomes shorter, else down."""
        if rounding != "ceil_where_smaller":
            return rounding
        return "ceil" if self.pixel > 1 else "floor"

    def integers(self, rounding: str = "") -> tuple[int, int, int]:
        """(step, offset, unit) so that floor((step o + offset) / unit) is the source at or below each output, or the
        nearest one by a ``rounding``. The fractions of a coordinate and a kernel's are the same numbers."""
        rounding = self.rounded(rounding)
        start = self.start + (_HALF if rounding.startswith("round") else 0)
        unit = math.lcm(self.slope.denominator, start.denominator)
        step, offset = int(self.slope * unit), int(start * unit)
        # ceil(a / u) = floor((a + u - 1) / u), and rounding half down is ceil(x - 1/2).
        return step, offset + {"ceil": unit - 1, "round_prefer_floor": -1}.get(rounding, 0), unit


def given_axes(attrs: Mapping[str, AttrValue], rank: int) -> tuple[int, ...]:
    """The axes that sizes, scales and roi are for."""
    return tuple(shapes.axis_of("resize", a, rank) for a in shapes.ints(attrs["axes"])) or tuple(range(rank))


def floats(value: AttrValue) -> tuple[float, ...]:
    return tuple(float(v) for v in value) if isinstance(value, tuple) else (float(value),)


def resized(attrs: Mapping[str, AttrValue], dims: Sequence[int]) -> list[Axis]:
    """Every axis of a tensor of these dimensions. Raises GraphError where the attributes do not fit them."""
    axes = given_axes(attrs, len(dims))
    sizes, scales = shapes.ints(attrs["sizes"]), floats(attrs["scales"])
    if bool(sizes) == bool(scales):
        raise GraphError("resize needs either sizes or scales, and not both")
    given: Sequence[float] = sizes or scales
    # A size of 0 is that of an axis without elements, which stays.
    least = min((value for value, a in zip(given, axes, strict=False) if value or dims[a] or scales), default=1)
    if len(set(axes)) != len(axes) or len(given) != len(axes) or least <= 0 or not np.isfinite(given).all():
        raise GraphError(
            f"resize: {list(given)} for {shape_str(dims)}, axes {list(axes)}; need {len(axes)} finite values above 0, "
            "for different axes"
        )
    roi = floats(attrs["roi"]) if attrs["coordinate"] == "tf_crop_and_resize" else (0.0, 1.0)
    if attrs["coordinate"] == "tf_crop_and_resize" and (len(roi) != 2 * len(axes) or not np.isfinite(roi).all()):
        raise GraphError(f"resize: roi {list(roi)}; it has a finite start for each of {len(axes)} axes, then the ends")
    result = [Axis(d, d, Fraction(1), Fraction(1), Fraction(0)) for d in dims]
    full = [Fraction(s, dims[a]) for s, a in zip(sizes, axes, strict=False) if dims[a]]
    common = _common_scale(str(attrs["policy"]), full)
    for i, axis in enumerate(axes):
        n_in = dims[axis]
        if not n_in:
            if sizes and sizes[i]:
                raise GraphError(
                    f"resize: axis {axis} of {shape_str(dims)} is empty; it stays so, and is not {sizes[i]}"
                )
            continue
        if common is not None:
            n_out, pixel = math.floor(common * n_in + _HALF), 1 / common
        elif sizes:
            n_out, pixel = sizes[i], Fraction(n_in, sizes[i])
        else:
            # The product rounds to f32 first, as in the runtimes that models are checked with: 10 * f32(0.7) is 7.
            with np.errstate(over="ignore"):
                product = np.float32(n_in) * np.float32(scales[i])
            if not product < 2**63:
                raise GraphError(f"resize: axis {axis} of {shape_str(dims)} by {given[i]} is {product:g} long")
            n_out = int(product)
            pixel = _pixel(scales[i], n_in, n_out)
        if n_out < 1:
            raise GraphError(f"resize: axis {axis} of {shape_str(dims)} by {given[i]} is empty")
        region = (roi[i], roi[i + len(axes)]) if len(roi) == 2 * len(axes) else (0.0, 1.0)
        slope, start = _position(str(attrs["coordinate"]), n_in, n_out, pixel, region)
        result[axis] = Axis(n_in, n_out, pixel, slope, start)
    return result


def _common_scale(policy: str, scales: Sequence[Fraction]) -> Fraction | None:
    """The one scale of all axes that keeps the aspect ratio; None where each has its own."""
    if policy == "stretch" or not scales:
        return None
    return min(scales) if policy == "not_larger" else max(scales)


def _pixel(scale: float, n_in: int, n_out: int) -> Fraction:
    """Source pixels per output pixel. A scale that leads to n_out within f32 rounding is n_out / n_in."""
    if n_out and abs(scale * n_in - n_out) <= n_out * 2.0**-22:
        return Fraction(n_in, n_out)
    fraction = Fraction(scale).limit_denominator(_MOST_DENOMINATOR)
    return 1 / (fraction or Fraction(1, _MOST_DENOMINATOR))


def _position(
    mode: str, n_in: int, n_out: int, pixel: Fraction, region: tuple[float, float]
) -> tuple[Fraction, Fraction]:
    """(slope, start): output index o looks at source coordinate slope * o + start."""
    if mode == "align_corners":
        return (Fraction(n_in - 1, n_out - 1) if n_out > 1 else Fraction(0)), Fraction(0)
    if mode == "asymmetric":
        return pixel, Fraction(0)
    if mode == "pytorch_half_pixel" and n_out == 1:
        return Fraction(0), Fraction(0)
    if mode == "tf_crop_and_resize":
        first, last = (Fraction(corner).limit_denominator(_MOST_DENOMINATOR) * (n_in - 1) for corner in region)
        return ((last - first) / (n_out - 1), first) if n_out > 1 else (Fraction(0), (first + last) / 2)
    half_pixel = pixel / 2 - _HALF
    if mode == "half_pixel_symmetric":
        # The middle of the input is that of the output before its size was rounded.
        return pixel, half_pixel + Fraction(n_in, 2) * (1 - n_out * pixel / n_in)
    return pixel, half_pixel


def rounding(attrs: Mapping[str, AttrValue]) -> str:
    """How nearest sampling rounds; nothing for other modes."""
    return str(attrs["nearest"]) if attrs["mode"] == "nearest" else ""


def kernel(call: Call, axis: Axis) -> tuple[int, int, float]:
    """First tap from the pixel at or below, number of taps, and how much the kernel is squeezed along the axis: with
    antialias it is as wide as an output pixel where that is the wider one."""
    squeeze = min(1.0, float(1 / axis.pixel)) if call["antialias"] else 1.0
    reach = {"nearest": 0, "linear": 1, "cubic": 2}[call["mode"]]
    first = math.floor(-reach / squeeze) + 1
    return first, 2 - 2 * first, squeeze


def passes(call: Call) -> list[tuple[int, Axis]]:
    """The axes that a pass is needed for; one, where none is."""
    axes = [(i, axis) for i, axis in enumerate(resized(call.attrs, call.shape("x"))) if not axis.is_identity]
    return axes or [(0, resized(call.attrs, call.shape("x"))[0])]


def weight_at(distance: F64, mode: str, a: float) -> F64:
    """What the pixels at a distance count, by linear or cubic interpolation; ``a`` is the cubic one's coefficient."""
    d: F64 = np.abs(distance)
    if mode == "linear":
        return np.maximum(1 - d, 0.0)
    near, far = (a + 2) * d**3 - (a + 3) * d**2 + 1, a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))
