"""A backward-weight convolution in numbers: extents along (d, h, w), depth 1 in two dimensions."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cached_property

from vkconv.call import Call
from vkconv.core import DType, GraphError, shape_str
from vkconv.graph.ir import AttrValue
from vkconv.ops.core.shapes import groups_str
from vkconv.ops.kernels.compiled import element_of
from vkconv.ops.kernels.windows import out_extent

Triple = tuple[int, int, int]
AXES = "dhw"


@dataclasses.dataclass(frozen=True)
class WeightGradient:
    """dw (C_out, C_in / groups, kernel) sums, over ``n`` images and the ``out`` pixels of dy, products of dy and x.

    As a matrix product of each group it is ``rows`` (output channels) x ``columns`` (input channels and taps, as they
    lie in w), summed over ``pixels`` (images and pixels of dy). ``before`` is the padding before each axis,
    ``element`` the type of its floats. ``by_channel`` is where x and dy lie as [group][pixel][channel of the group, to
    whole vec4], for one image of one line whose pixels meet each the same one.
    """

    n: int
    c_in: int
    extent: Triple
    c_out: int
    out: Triple
    groups: int
    kernel: Triple
    stride: Triple
    dilation: Triple
    before: Triple
    element: str = DType.F32
    by_channel: bool = False

    @classmethod
    def of(cls, call: Call) -> "WeightGradient":
        """The numbers of a call of either rank."""
        n, c_in, *extent = call.shape("x")
        c_out, *out = call.shape("dy")[1:]
        rank = len(extent)
        padding = call["padding"][:rank]
        return cls(
            n,
            c_in,
            _triple(extent, 1),
            c_out,
            _triple(out, 1),
            call["groups"],
            _triple(call["w_shape"][2:], 1),
            _triple(call["stride"], 1),
            _triple(call["dilation"], 1),
            _triple(padding, 0),
            element_of(call),
        )

    @property
    def rows(self) -> int:
        return self.c_out // self.groups

    @property
    def channels(self) -> int:
        """Input channels of a group."""
        return self.c_in // self.groups

    @cached_property
    def columns(self) -> int:
        return self.channels * math.prod(self.kernel)

    @cached_property
    def pixels(self) -> int:
        return self.n * math.prod(self.out)

    @property
    def size(self) -> int:
        """Elements of dw."""
        return self.c_out * self.columns

    @property
    def reduction(self) -> tuple[int, int, int, int]:
        """The dimensions that are summed over, from the outermost: images, depth, height and width of dy."""
        return (self.n, *self.out)

    @cached_property
    def padded(self) -> bool:
        """Whether a window reaches beyond x on any side."""
        sides = zip(self.extent, self.out, self.kernel, self.stride, self.dilation, self.before, strict=True)
        return any(p > 0 or (o - 1) * s + (k - 1) * d + 1 > e for e, o, k, s, d, p in sides if math.prod(self.out) > 0)

    @property
    def deep(self) -> bool:
        """Whether any extent along d is not what it is in two dimensions."""
        return (self.extent[0], self.out[0], self.kernel[0], self.before[0]) != (1, 1, 1, 0)

    @property
    def pointwise(self) -> bool:
        """Whether each pixel of dy meets exactly the same pixel of x."""
        return not self.padded and self.kernel == (1, 1, 1) and self.stride == (1, 1, 1) and self.extent == self.out


def _triple(values: Sequence[int], fill: int) -> Triple:
    d, h, w = (*(fill,) * (3 - len(values)), *values)
    return d, h, w


def per_axis(op: str, attrs: Mapping[str, AttrValue], name: str, rank: int) -> tuple[int, ...]:
    """An attribute with one value for each axis, or one for all. GraphError unless all are at least 1."""
    given = attrs[name]
    assert isinstance(given, tuple)
    values = tuple(int(v) for v in given)
    values *= rank if len(values) == 1 else 1
    if len(values) != rank or min(values) < 1:
        raise GraphError(f"{op}: {name} is {given}; it takes 1 or {rank} values of at least 1 ({_axes(rank)})")
    return values


def paddings(op: str, attrs: Mapping[str, AttrValue], rank: int, crops: bool = False) -> tuple[int, ...]:
    """Padding before every axis, then after every axis, from one value, one for each axis or one for each side; a
    negative one is for ops that say so, ``crops``."""
    given = attrs["padding"]
    assert isinstance(given, tuple)
    values = tuple(int(v) for v in given)
    if len(values) not in (1, rank, 2 * rank) or (min(values) < 0 and not crops):
        raise GraphError(
            f"{op}: padding is {given}; it takes 1, {rank} ({_axes(rank)}) or {2 * rank} values (before each axis, "
            f"then after each){'' if crops else ' of at least 0'}"
        )
    return values * (2 * rank // len(values))


def check_extents(
    op: str,
    extent: Sequence[int],
    out: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> None:
    """GraphError unless dy is as large as the forward convolution of x makes it, along every axis, with its numbers."""
    rank = len(extent)
    for i, axis in enumerate(AXES[3 - rank :]):
        pads = padding[i], padding[i + rank]
        want = out_extent(axis, extent[i], kernel[i], stride[i], pads, dilation[i])
        if want != out[i]:
            raise GraphError(
                f"{op}: along {axis} dy has {out[i]}, but x of {extent[i]} with padding {pads[0]} + {pads[1]}, kernel "
                f"{kernel[i]}, dilation {dilation[i]} and stride {stride[i]} makes ({extent[i]} + {sum(pads)} - "
                f"{dilation[i] * (kernel[i] - 1)} - 1) / {stride[i]} + 1 = {want}"
            )


def check_shapes(op: str, x: Sequence[int], dy: Sequence[int], w: Sequence[int], groups: int) -> None:
    """GraphError where the extents of x, dy and w do not go together."""
    if x[0] != dy[0]:
        raise GraphError(f"{op}: x has {x[0]} images, but dy has {dy[0]}")
    if x[1] < 1:
        raise GraphError(f"{op}: x has {x[1]} channels ({shape_str(x)}); give it at least 1")
    if w[1] * groups != x[1]:
        raise GraphError(
            f"{op}: x has {x[1]} channels, but w_shape {shape_str(w)} has {w[1]} per group in {groups_str(groups)} = "
            f"{w[1] * groups}"
        )
    if dy[1] != w[0]:
        raise GraphError(f"{op}: dy has {dy[1]} channels, but w_shape {shape_str(w)} makes {w[0]}")
    if w[0] < 1 or w[0] % groups:
        raise GraphError(f"{op}: {w[0]} output channels do not divide into {groups} groups")
    if min(w[2:]) < 1:
        raise GraphError(f"{op}: the kernel is {shape_str(w[2:])}; every side is at least 1")


def _axes(rank: int) -> str:
    return ", ".join(AXES[3 - rank :])
