"""A convolution of 8-bit integers in numbers, and what of it is made once: the table of channels, packed weights."""

import math
from typing import NamedTuple, Self

from vkconv.call import Call
from vkconv.core import DType, align, ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.kernels.strided import dispatch_each, walk_defaults
from vkconv.ops.kernels.windows import spanned
from vkconv.ops.quant.integer import IntegerTile, is_signed
from vkconv.program import Dispatch
from vkconv.shaders import quant

CHANNELS, PACK = (Shader(kernel, DType.U32) for kernel in (quant.INTEGER_CHANNELS, quant.INTEGER_PACK))


class Geometry(NamedTuple):
    """A convolution as the shaders see it: their push constants. A 1x1 one of stride 1 without padding is a single
    row."""

    n: int
    c_in: int
    h: int
    w: int
    c_out: int
    oh: int
    ow: int
    groups: int
    kh: int
    kw: int
    sh: int
    sw: int
    dh: int
    dw: int
    pt: int
    pl: int

    @classmethod
    def of(cls, call: Call) -> Self:
        n, c_in, h, w = call.shape("x")
        c_out, _, kh, kw = call.shape("w")
        oh, ow = call.shape("y")[2:]
        if (kh, kw) == (1, 1) and call["stride"] == (1, 1) and not any(call["padding"]):
            h, w, oh, ow = 1, h * w, 1, oh * ow
        window = (kh, kw, *call["stride"], *call["dilation"], *call["padding"][:2])
        return cls(n, c_in, h, w, c_out, oh, ow, call["groups"], *window)

    @property
    def in_group(self) -> int:
        return self.c_in // self.groups

    @property
    def out_group(self) -> int:
        return self.c_out // self.groups

    @property
    def taps(self) -> int:
        return self.kh * self.kw

    @property
    def terms(self) -> int:
        return self.in_group * self.taps

    @property
    def k_words(self) -> int:
        """Words of four channels that a sum is over."""
        return self.taps * ceil_div(self.in_group, 4)

    def span(self, outputs: int) -> int:
        """Inputs of a row from the first to the last that so many neighbouring outputs touch."""
        return spanned(outputs, self.sw, self.kw, self.dw)

    def blocks(self, tile: IntegerTile) -> int:
        """Workgroups by tiles."""
        return self.groups * tile.blocks(self.out_group, self.n * self.oh * self.ow)


def channel_table(call: Call, device: Device) -> tuple[Dispatch, int]:
    """The launch that makes the table of output channels, and its bytes."""
    c_out, taps = call.shape("y")[1], math.prod(call.shape("w")[1:])
    names = {"bias": "b"} | {name: name for name in ("w_zero", "x_scale", "w_scale", "y_scale", "y_zero")}
    given = {binding: name for binding, name in names.items() if call.has(name)}

    def per_channel(name: str) -> bool:
        return name in given and call.specs[name].size == c_out > 1

    step = dispatch_each(
        CHANNELS,
        c_out + 1,
        device,
        {"local": 32},
        {"c_out": c_out, "taps": taps},
        {
            "W_SIGNED": is_signed(call, "w"),
            "Y_SIGNED": is_signed(call, "y"),
            "HAS_W_ZERO": "w_zero" in given,
            "HAS_BIAS": "bias" in given,
            "HAS_SCALES": "y_scale" in given,
            "ZERO_PER_CHANNEL": per_channel("w_zero"),
            "SCALE_PER_CHANNEL": per_channel("w_scale"),
        },
        {"weight": "w", **{binding: given.get(binding) for binding in names}},
        max(taps, c_out) + 27,
    )
    return step, 16 * (c_out + 1)


def packed_weights(call: Call, device: Device, tile: int, quads: bool) -> tuple[Dispatch, int]:
    """The launch that packs the weights for tiles of so many rows, and the bytes of the result. ``quads``: by words of
    four channels."""
    g = Geometry.of(call)
    rows = align(g.out_group, tile) * g.groups
    words = rows * g.k_words if quads else ceil_div(rows * g.terms, 4)
    push = {"words": words, "rows": g.out_group, "in_group": g.in_group, "taps": g.taps}
    constants = {"W_SIGNED": is_signed(call, "w"), "QUADS": quads, "TILE": tile}
    step = dispatch_each(PACK, words, device, walk_defaults(device), push, constants, {"weight": "w"})
    return step, align(4 * words, 16)
