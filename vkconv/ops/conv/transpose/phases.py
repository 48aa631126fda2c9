"""How the outputs of a transposed convolution split into phases that the same taps reach."""

import dataclasses
import math

from vkconv.call import Call
from vkconv.core import GraphError, ceil_div, shape_str
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core.base import Attrs, Specs
from vkconv.ops.core.shapes import groups_of, one_float_dtype, operand
from vkconv.ops.kernels.epilogue import check_epilogue
from vkconv.ops.kernels.windows import pair
from vkconv.program import Word
from vkconv.requirement import Requirement

# Which tap reaches an output is found by products of two numbers below stride / gcd(stride, dilation), in 32 bits.
_MOST_TAP_STEP = 1 << 15


def check_operands(
    op: str, name: str, specs: Specs, attrs: Attrs, lie: tuple[str, str], channels: tuple[str, str]
) -> tuple[TensorSpec, TensorSpec, int]:
    """The operand ``name`` of a transposed convolution, its weights, and how many channels it makes. GraphError where
    these, the strides and the epilogue do not go together. ``lie``: how both operands do; ``channels``: which ones,
    input or output, it has and makes."""
    x, w, (own, made) = operand(specs, name, op), operand(specs, "w", op), channels
    if len(x.shape) != 4 or len(w.shape) != 4:
        raise GraphError(f"{op} takes {name} {lie[0]} and w {lie[1]}, not {x} and {w}")
    b, slope = specs.get("b"), specs.get("slope")
    one_float_dtype(op, x, w, b, slope)
    groups, count, (w_count, per_group, *kernel) = groups_of(op, attrs), x.dims[1], w.dims
    if count < 1 or w_count != count:
        raise GraphError(f"{name} has {count} channels, but w {'takes' if own == 'input' else 'makes'} {w_count}")
    if count % groups:
        raise GraphError(f"{count} {own} channels do not divide into {groups} groups")
    if min(per_group, *kernel) < 1:
        raise GraphError(
            f"w has {per_group} {made} channels per group and a {shape_str(kernel)} kernel; all are at least 1"
        )
    check_epilogue(b, slope, attrs, per_group * groups, made)
    stride, dilation = pair(attrs, "stride"), pair(attrs, "dilation")
    for s, d in zip(stride, dilation, strict=True):
        if s // math.gcd(s, d) > _MOST_TAP_STEP:
            raise GraphError(
                f"stride is {stride} and dilation {dilation}: outputs split into {s // math.gcd(s, d)} phases along an "
                f"axis; at most {_MOST_TAP_STEP} can be told apart"
            )
    return x, w, per_group * groups


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
FEW_PHASES = Requirement.of(
    f"at most {_MOST_PHASES} phases of the strides",
    lambda call: call["stride"],
    lambda stride: math.prod(stride) <= _MOST_PHASES,
    lambda stride: f"{shape_str(stride)} = {math.prod(stride)}",
)
