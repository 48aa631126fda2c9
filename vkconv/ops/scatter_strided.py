"""scatter_strided: a tensor inserted at offsets and strides into zeros of a given shape."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vkconv.core import Array, GraphError
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops import shapes
from vkconv.ops.base import Attr, Attrs, Op, Operand, Specs
from vkconv.ops.needs import WORDS
from vkconv.ops.scatter import FILL_SCATTER, GATHER, MAX_RANK, Insertion
from vkconv.ops.strided import walk_params
from vkconv.route import Call, Need, Params, Route
from vkconv.shader import Program

# No tensor that a shader can index is longer, and sums of two such numbers are within its 32 bits.
_MOST = 1 << 30


def _resolve(specs: Specs, attrs: Attrs) -> tuple[Attrs, tuple[TensorSpec, ...]]:
    x = shapes.operand(specs, "x", "scatter_strided")
    rank, shape = len(x.dims), shapes.ints(attrs["shape"])
    if not 1 <= rank <= MAX_RANK:
        raise GraphError(f"scatter_strided takes x of rank 1 to {MAX_RANK}, not {x}")
    if len(shape) != rank or min(shape) < 0:
        raise GraphError(f"scatter_strided: shape is {shape}; it takes {rank} values >= 0, as x is {x}")
    canonical: Attrs = {"shape": shape}
    for name, least in (("offset", None), ("stride", 1)):
        values = shapes.ints(attrs[name])
        values *= rank if len(values) == 1 else 1
        if len(values) != rank or (least is not None and min(values) < least):
            at_least = "" if least is None else f" of at least {least}"
            raise GraphError(f"scatter_strided: {name} is {values}; it takes one value or {rank}{at_least}")
        if max(map(abs, values)) > _MOST:
            raise GraphError(f"scatter_strided: {name} is {values}; its values are at most {_MOST}")
        canonical[name] = values
    return canonical, (TensorSpec(shape, x.dtype),)


def _reference(call: Call, arrays: Mapping[str, Array | None]) -> Sequence[Array]:
    x = shapes.given(arrays, "x")
    y = np.zeros(call["shape"], x.dtype)
    rows = zip(x.shape, call["shape"], call["offset"], call["stride"], strict=True)
    places = [(offset + stride * np.arange(count), extent) for count, extent, offset, stride in rows]
    inside = [(at >= 0) & (at < extent) for at, extent in places]
    to = [at[keep] for (at, _), keep in zip(places, inside, strict=True)]
    y[np.ix_(*to)] = x[np.ix_(*inside)]
    return [y]


def insertion(call: Call) -> Insertion:
    """The call in numbers."""
    return Insertion(call.shape("x"), call["shape"], call["offset"], call["stride"])


def _gather(call: Call, device: Device, params: Params) -> Program:
    return Program((insertion(call).gather(device, params, ["x"], "y"),))


def _fill_scatter(call: Call, device: Device, params: Params) -> Program:
    return Program(insertion(call).fill_scatter(device, params, "x", "y"))


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """Up to how many elements that pass through one launch gathers on a class of devices (None: always, 0: never), and
    what that rests on."""

    most: int | None
    source: str

    def __str__(self) -> str:
        many = "always" if self.most is None else f"up to {self.most}" if self.most else "never"
        return f"{many} ({self.source})"


# By kind of device, then for what is left. lavapipe, gather over fill_scatter in time: 64x28x28 to 64x58x58 by 2 1.36,
# 2x512x14x14 to 28x28 by 2 1.65, 16x75x75 to 227x227 by 3 2.85, channels last 28x28x64 by 2 1.44, 14x14x512 by 2 1.61.
_LIMITS: Mapping[str, Limit] = {
    "cpu": Limit(0, "measured on lavapipe, 1.36 to 2.85 times as slow"),
    "discrete": Limit(None, "fewer bytes: what lies in y is written once, not twice"),
}
_OTHERS = Limit(256, "iree#23979, kMaxPassthroughElems: above, filling by DMA was faster on an MI355X")


def limit(device: Device) -> Limit:
    """The row of the table for a device."""
    return _LIMITS.get(device.kind, _OTHERS)


def gathers(x: Insertion, device: Device) -> bool:
    """Whether one launch gathers by rule."""
    most = limit(device).most
    return most is None or x.passed_through <= most


def few_passed_through(of: Callable[[Call], Insertion]) -> Need:
    """`gathers` of the insertion that a call makes."""
    return Need(
        "no more elements of dimensions that pass through than such devices gather",
        lambda call, device: gathers(of(call), device),
        lambda call, device: f"{of(call).passed_through}; one launch gathers {limit(device)}",
    )


SCATTER_STRIDED = Op(
    "scatter_strided",
    (Operand("x", partial=True),),
    ("y",),
    _resolve,
    _reference,
    attrs=(
        Attr("shape", "shape", tuple[int, ...]),
        Attr("offset", "offset", tuple[int, ...], (0,)),
        Attr("stride", "stride", tuple[int, ...], (1,)),
    ),
    routes=(
        Route(
            "gather",
            _gather,
            (GATHER,),
            "one launch writes every element of y once: zeros where no element of x lies; and, shift for strides that "
            "are powers of two",
            (WORDS,),
            (few_passed_through(insertion),),
            source="iree#23979",
            params=walk_params,
        ),
        Route(
            "fill_scatter",
            _fill_scatter,
            FILL_SCATTER,
            "zeros everywhere, then x over them: no test per element, but what x covers is written twice",
            (WORDS,),
            source="iree#23976",
            params=walk_params,
        ),
    ),
    cases=(
        "scatter_strided:x=5,shape=13,offset=1,stride=3",
        "scatter_strided:x=4x4,shape=9x9,offset=1,stride=2",
        "scatter_strided:x=3x3,shape=10x10,offset=1,stride=3",
        "scatter_strided:x=1x5x5x4x8,shape=1x12x12x4x8,offset=0x1x1x0x0,stride=1x2x2x1x1",
        "scatter_strided:x=2x3x5x7,shape=2x3x8x9,offset=0x0x-1x-2,stride=1x1x2x2",
        "scatter_strided:x=2x3x4x3x5,shape=2x7x4x9x21,offset=0x1x0x-3x2,stride=1x2x1x4x5",
        "scatter_strided:x=3x5:i32,shape=3x5",
        "scatter_strided:x=3x5,shape=4x3,offset=40x-9,stride=2",
        "scatter_strided:x=2x300,shape=5x300,stride=2x1",
        "scatter_strided:x=0x3,shape=2x3",
    ),
    doc="x at offset and stride along each dimension (one value stands for all) in zeros of a shape; what lies outside "
    "is cropped.",
)
