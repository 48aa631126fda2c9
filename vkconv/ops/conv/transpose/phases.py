"""How the outputs of a transposed convolution split into phases that the same taps reach."""

import dataclasses
import math

from vkconv.call import Call
from vkconv.core import GraphError, ceil_div, shape_str
from vkconv.program import Word
from vkconv.route import Requirement

# Which tap reaches an output is found by products of two numbers below stride / gcd(stride, dilation), in 32 bits.
_MOST_TAP_STEP = 1 << 15


def check_strides(stride: tuple[int, int], dilation: tuple[int, int]) -> None:
    """GraphError where a stride is too large to look for the taps that reach an output."""
    for s, d in zip(stride, dilation, strict=True):
        if s // math.gcd(s, d) > _MOST_TAP_STEP:
            raise GraphError(
                f"stride is {stride} and dilation {dilation}: outputs split into {s // math.gcd(s, d)} phases along an "
                f"axis; at most {_MOST_TAP_STEP} can be told apart"
            )


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """One axis (0: h, 1: w) of a call: outputs ``stride`` apart take taps ``tap_step`` apart, and from one such tap to
    the next inputs ``step`` apart (shaders/conv_transpose2d_tile.comp)."""

    outputs: int
    kernel: int
    stride: int
    dilation: int

    @property
    def gcd(self) -> int:
        return math.gcd(self.stride, self.dilation)

    @property
    def tap_step(self) -> int:
        return self.stride // self.gcd

    @property
    def step(self) -> int:
        return self.dilation // self.gcd

    @property
    def inverse(self) -> int:
        """What ``step`` times this leaves 1 of, modulo ``tap_step``."""
        return pow(self.step, -1, self.tap_step) if self.tap_step > 1 else 0

    @property
    def most_taps(self) -> int:
        """Taps of the phase that has most of them."""
        return ceil_div(self.kernel, self.tap_step)

    @property
    def phases(self) -> tuple[tuple[int, int, int], ...]:
        """Phases with as many taps as each other together: (taps, first phase, number of phases). A phase goes by its
        first tap; those beyond the kernel have none. Where the stride and the dilation have a common divisor, there
        are outputs in no phase, which nothing reaches."""
        rest = self.kernel % self.tap_step
        runs = (self.most_taps, 0, rest), (self.kernel // self.tap_step, rest, self.tap_step - rest)
        return tuple(run for run in runs if run[2])


def axes(call: Call) -> tuple[Axis, Axis]:
    """Both axes of a call, h before w."""
    lists = (call.shape("y")[2:], call.shape("w")[2:], call["stride"], call["dilation"])
    h, w = (Axis(*values) for values in zip(*lists, strict=True))
    return h, w


def inverses(h: Axis, w: Axis) -> dict[str, Word]:
    """The specialization constants that find the first tap of a phase."""
    return {"GCD_H": h.gcd, "GCD_W": w.gcd, "INVERSE_H": h.inverse, "INVERSE_W": w.inverse}


def reaching(h: Axis, w: Axis) -> dict[str, Word]:
    """The specialization constants of what looks for taps: shaders/include/transposed.glsl."""
    return {"SH": h.stride, "SW": w.stride, "DH": h.dilation, "DW": w.dilation, **inverses(h, w)}


def most_products(call: Call) -> int:
    """Products that the output with the most of them sums: of each phase, the taps that reach it."""
    h, w = axes(call)
    return call.shape("w")[0] // int(call["groups"]) * h.most_taps * w.most_taps


# Phases are units of work, also those that have no output.
_MOST_PHASES = 4096
FEW_PHASES = Requirement(
    f"at most {_MOST_PHASES} phases of the strides",
    lambda call, device: math.prod(call["stride"]) <= _MOST_PHASES,
    lambda call, device: f"{shape_str(call['stride'])} = {math.prod(call['stride'])}",
)
