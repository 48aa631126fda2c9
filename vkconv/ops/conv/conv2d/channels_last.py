"""The copy of an input of conv2d that has channels last, in 8-wide vectors, as matrix units take it: what it is, and
what it costs."""

import dataclasses
import math

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, align, ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.base import divisor, over_workgroups
from vkconv.ops.kernels.coopmat import EIGHT
from vkconv.ops.kernels.launch_costs import LaunchCosts
from vkconv.policy import Policy
from vkconv.program import Argument, Dispatch, Word

# Moves words of 16 bits, whatever they are.
CHANNELS_LAST = Shader(shaders.conv2d.CHANNELS_LAST, DType.U16)
CHANNELS_LAST_WORDS = Shader(shaders.conv2d.CHANNELS_LAST_WORDS, DType.U16)
_SIDE, _LANES = 64, 256  # pixels and channels, and invocations, of a workgroup of the first
_ACROSS = (4, 2, 1)  # 8-wide vectors of a pixel that neighbouring lanes of the second take, where there are as many


_COPY = Policy("conv2d.channels_last", LaunchCosts)


def word_of(shape: tuple[int, ...]) -> int:
    """Of how many elements planes of an image are whole words: 8, 4 or 1."""
    plane = math.prod(shape[2:])
    return next(word for word in (EIGHT, EIGHT // 2, 1) if plane % word == 0)


@dataclasses.dataclass(frozen=True, slots=True)
class ChannelsLast:
    """The copy of an input that has channels last, in 8-wide vectors: padded or cropped to what the windows cover, and
    thinned to what they touch along a side of the kernel that is 1. The vectors of a pixel lie side by side; or, of a
    ``block``, so many of them, a group's up to whole blocks, and those of all pixels before the next ones."""

    call: Call
    block: int = 0

    @property
    def vectors(self) -> int:
        """8-wide vectors that a pixel has."""
        of_group = ceil_div(self.call.shape("w")[1], EIGHT)
        return int(self.call["groups"]) * (align(of_group, self.block) if self.block else of_group)

    @property
    def steps(self) -> tuple[int, int]:
        """Rows and columns of the input from one of the copy to the next."""
        h, w = (s if k == 1 else 1 for s, k in zip(self.call["stride"], self.call.shape("w")[2:], strict=True))
        return h, w

    @property
    def strides(self) -> tuple[int, int]:
        """Those of the windows in the copy."""
        h, w = (s // step for s, step in zip(self.call["stride"], self.steps, strict=True))
        return h, w

    @property
    def extents(self) -> tuple[int, int]:
        """Its rows and columns."""
        lists = (self.call.shape("y")[2:], self.strides, self.call.shape("w")[2:], self.call["dilation"])
        h, w = ((max(out, 1) - 1) * s + (k - 1) * d + 1 for out, s, k, d in zip(*lists, strict=True))
        return h, w

    @property
    def nbytes(self) -> int:
        """At two bytes an element."""
        return 2 * EIGHT * self.vectors * self.call.shape("x")[0] * math.prod(self.extents)

    def dispatch(self, device: Device) -> Dispatch:
        """The launch that makes it, as ``last``."""
        words = word_of(self.call.shape("x"))
        return self._in_words(words, device) if words > 1 and self.steps == (1, 1) else self._in_pixels(device)

    @property
    def _constants(self) -> dict[str, Word]:
        whole = self.call.shape("w")[1] % (EIGHT * max(self.block, 1)) == 0
        return {"WHOLE": whole, "GROUPED": int(self.call["groups"]) > 1, "BLOCK": self.block}

    @property
    def _push(self) -> dict[str, Argument]:
        n, _, h, w = self.call.shape("x")
        (last_h, last_w), (pt, pl) = self.extents, self.call["padding"][:2]
        sizes = {"groups": self.call["groups"], "in_group": self.call.shape("w")[1], "last_h": last_h, "last_w": last_w}
        return {"n": n, "h": h, "w": w, **sizes, "pt": pt, "pl": pl}

    def _in_pixels(self, device: Device) -> Dispatch:
        groups = ceil_div(self.call.shape("x")[0] * math.prod(self.extents), _SIDE)
        groups *= ceil_div(self.vectors, _SIDE // EIGHT)
        return Dispatch(
            CHANNELS_LAST,
            {"x": "x", "y8": "last"},
            *over_workgroups(groups, _LANES, device),
            {
                **self._push,
                **dict(zip(("sh", "sw"), self.steps, strict=True)),
                **divisor("w", self.extents[1]),
                **divisor("h", self.extents[0]),
            },
            self._constants,
            16 * _SIDE * (_SIDE // EIGHT + 1),
        )

    def _in_words(self, word: int, device: Device) -> Dispatch:
        n, _, h, w = self.call.shape("x")
        pads = self.call["padding"][:2]
        begin = tuple(max(pad, 0) for pad in pads)
        stop = (min(pad + side, made) for pad, side, made in zip(pads, (h, w), self.extents, strict=True))
        inside = tuple(max(end - start, 0) for start, end in zip(begin, stop, strict=True))
        words, across = h * w // word, next(count for count in _ACROSS if count <= self.vectors)
        zeros = n * (math.prod(self.extents) - math.prod(inside)) * self.vectors
        groups = ceil_div(n * words, _LANES // across) * ceil_div(self.vectors, across) + ceil_div(zeros, _LANES)
        covered = dict(zip(("top", "left", "rows", "columns"), (*begin, *inside), strict=True))
        return Dispatch(
            CHANNELS_LAST_WORDS,
            {"x8": "x", "y8": "last"},
            *over_workgroups(groups, _LANES, device),
            {**self._push, **covered, **divisor("plane", words), **divisor("w", w)},
            {**self._constants, "WORD": word, "ACROSS": across},
        )


def can_copy(copy: ChannelsLast, device: Device) -> bool:
    """Whether a storage buffer holds it."""
    return copy.nbytes <= device.limit("maxStorageBufferRange")


def copied_bytes(copy: ChannelsLast) -> int:
    """What the launch reads and writes that makes it."""
    return copy.call.specs["x"].nbytes // copy.steps[0] + copy.nbytes


def copy_us(copy: ChannelsLast, device: Device) -> float:
    """Microseconds of that launch."""
    return _COPY.of(device).of(copied_bytes(copy), device)
