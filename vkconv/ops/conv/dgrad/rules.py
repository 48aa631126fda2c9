"""Which route conv2d_backward_data takes by rule: for each class of devices a list, of which the first row that holds
for a call names the route."""

import dataclasses
import math
from collections.abc import Mapping

from vkconv.call import Call
from vkconv.device import Device
from vkconv.ops.conv.common import KERNEL_1X1, STRIDE_1
from vkconv.ops.conv.conv2d.winograd import WINOGRAD
from vkconv.ops.conv.dgrad.as_conv import STRIDED, as_flipped, dilation
from vkconv.ops.conv.dgrad.as_transposed import TRANSPOSED
from vkconv.ops.conv.tiles import FITS_SMALLEST
from vkconv.ops.conv.transpose.blocks import FITS_BLOCKS, NARROW_GROUPS
from vkconv.ops.conv.transpose.phases import FEW_PHASES
from vkconv.ops.conv.transpose.routes import SHORT_SPAN
from vkconv.ops.core.views import View
from vkconv.ops.kernels.zero_insertion import few_passed_through
from vkconv.route import Requirement


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """A route for calls that have all of ``when``, and how that is known."""

    route: str
    when: tuple[Requirement, ...]
    source: str

    def __str__(self) -> str:
        calls = " and ".join(need.text for need in self.when) or "what is left"
        return f"{self.route} for {calls} ({self.source})"


# lavapipe, us, swap_1x1 and phase_blocks, stride 2, by operations: 205 M 9000 and 11200, 180 M 9400 and 11900, 164 M
# 8350 and 9100, 78 M 4210 and 4110, 77 M 4870 and 5360, 69 M 3920 and 4030; 51 M 2710 and 2660, 41 M 2700 and 2340, 26
# M 1000 and 760, 23 M 2160 and 1700, 13 M 840 and 730.
_LONG = 60_000_000


def _operations(call: Call) -> int:
    return 2 * math.prod(call.shape("dy")) * math.prod(call.shape("w")[1:])


LONG = Requirement(
    f"{_LONG // 1_000_000} million operations",
    lambda call, device: _operations(call) >= _LONG,
    lambda call, device: f"{_operations(call) / 1e6:.1f} million",
)
_BLOCKS = tuple(TRANSPOSED.need(need) for need in FITS_BLOCKS)
_FEW_PHASES = TRANSPOSED.need(FEW_PHASES)
_TILES = _FEW_PHASES, TRANSPOSED.need(SHORT_SPAN)
_NARROW = TRANSPOSED.need(NARROW_GROUPS)
_AS_FLIPPED = View(as_flipped, {})
_WINOGRAD = (STRIDE_1, *(_AS_FLIPPED.need(need) for need in (*WINOGRAD.must, *WINOGRAD.prefer)))

_SWAP = Rule("swap_1x1", (KERNEL_1X1, STRIDED), "iree#23976: 2.81 to 6.82 times as fast on an MI355X")
_SCATTERS = (
    Rule("gather_scatter_conv", (few_passed_through(dilation),), "iree#23979: 1.19 to 1.77 times as fast on an MI355X"),
    Rule("fill_scatter_conv", (), "iree#23979: above, filling by DMA was faster on an MI355X"),
)
# lavapipe, least of 2 runs, us, phase_blocks, phase and fill_scatter_conv: 64 in 8 groups to 100x100 3x3 stride 2 1650,
# 3710, 5100; 32->3 to 235x363 3x3 stride 2 2590, 8870, 21300; 512->256 to 50x50 1x1 stride 2 9100, 20800, 26500. Stride
# 1, flipped_conv and phase_blocks: 64x28x28 3x3 1430 and 1460, with dilation 2 1460 and 2090, in 8 groups 280 and 390,
# 5x5 of depthwise 420 and 1040, 64x17x17 1x7 770 and 740, 24x128x128 1x1 to 96 4260 and 9160; 48x20x20 3x3 520 and 450.
_CPU = (
    Rule("flipped_winograd", _WINOGRAD, "as conv2d, measured on lavapipe"),
    Rule("flipped_conv", (STRIDE_1,), "measured on lavapipe: 0.4 to 1.15 of the time of phase_blocks"),
    Rule("swap_1x1", (KERNEL_1X1, STRIDED, LONG), "measured on lavapipe: 0.79 to 1.03 of the time of phase_blocks"),
    Rule("phase_blocks", _BLOCKS, "measured on lavapipe: 0.3 to 0.5 of the time of phase"),
    _SWAP,
    Rule("phase", _TILES, "measured on lavapipe: at most 0.8 of the time of fill_scatter_conv"),
    Rule("fill_scatter_conv", (), "measured on lavapipe: one launch that gathers is 1.36 to 2.85 times as slow"),
)
# By what they move and multiply: swap_1x1 writes and reads the small product once more than phase_gemm, but the latter
# writes dx in pieces of one element; other kernels multiply the dilated dy by stride x stride times as many products.
_GPUS = (
    Rule("flipped_winograd", _WINOGRAD, "as conv2d, measured on an H200"),
    Rule("flipped_conv", (STRIDE_1,), "iree#23976: nothing to dilate"),
    _SWAP,
    Rule("phase_blocks", (_NARROW, *_BLOCKS), "every element of dy read once and of dx written once, and no idle rows"),
    Rule("phase_gemm", (_FEW_PHASES, *FITS_SMALLEST), "as many products as needed, without scratch"),
    *_SCATTERS,
)
_RULES: Mapping[str, tuple[Rule, ...]] = {"cpu": _CPU}


def rule(call: Call, device: Device) -> Rule:
    """The row that holds for a call."""
    rows = _RULES.get(device.kind, _GPUS)
    return next(row for row in rows if all(need.test(call, device) for need in row.when))


def taken(route: str) -> Requirement:
    """The rules for such devices name the route."""
    return Requirement(
        "what the rules for such devices name",
        lambda call, device: rule(call, device).route == route,
        lambda call, device: str(rule(call, device)),
    )
