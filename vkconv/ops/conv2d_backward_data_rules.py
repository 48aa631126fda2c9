"""Which route conv2d_backward_data takes by rule: for each class of devices a list, of which the first row that holds
for a call names the route."""

import dataclasses
import math
from collections.abc import Mapping

from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.ops.conv2d_backward_data_dense import FLIPPED_WINOGRAD, STRIDED, dilation
from vkconv.ops.conv2d_backward_data_view import TRANSPOSED
from vkconv.ops.conv2d_gemm import FITS_SMALLEST
from vkconv.ops.conv2d_parts import KERNEL_1X1, STRIDE_1
from vkconv.ops.conv_transpose2d_blocks import FITS_BLOCKS, NARROW_GROUPS
from vkconv.ops.conv_transpose2d_routes import SHORT_SPAN
from vkconv.route import Call, Need

# iree#23979: kMaxPassthroughElems, above which filling by DMA was faster on an MI355X.
MOST_PASSED_THROUGH = 256


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """A route for calls that have all of ``when``, and how that is known."""

    route: str
    when: tuple[Need, ...]
    source: str

    def __str__(self) -> str:
        calls = " and ".join(need.text for need in self.when) or "what is left"
        return f"{self.route} for {calls} ({self.source})"


FEW_PASSED_THROUGH = Need(
    f"at most {MOST_PASSED_THROUGH} channels of dy",
    lambda call, device: dilation(call).passed_through <= MOST_PASSED_THROUGH,
    lambda call, device: str(dilation(call).passed_through),
)
DEPTHWISE = Need(
    "a group for each channel",
    lambda call, device: call["groups"] == call.shape("dx")[1] == call.shape("dy")[1],
    lambda call, device: f"{call['groups']} groups",
)
# lavapipe, best of 3 runs, us, flipped_winograd and phase_blocks: 128x28x28 (49 tiles) 6230 and 13530, 32x28x28 720 and
# 910, 48x20x20 (25) 880 and 1100; 64x14x14 (16) 1290 and 920, 256->128 over 14x14 8280 and 7130, 24x40x40 (100) 1470
# and 930, 32->16 over 56x56 1550 and 1570, 16->32 2830 and 1660.
_LEAST_CHANNELS, _LEAST_TILES = 32, 24


def _winograd_sizes(call: Call) -> tuple[int, int]:
    """The fewer of the channels, and tiles of 4x4."""
    n, c_in, h, w = call.shape("dx")
    return min(c_in, call.shape("dy")[1]), n * ceil_div(h, 4) * ceil_div(w, 4)


LARGE = Need(
    f"{_LEAST_CHANNELS} channels in and out, and {_LEAST_TILES} tiles of 4x4",
    lambda call, device: all(
        a >= b for a, b in zip(_winograd_sizes(call), (_LEAST_CHANNELS, _LEAST_TILES), strict=True)
    ),
    lambda call, device: "{} channels, {} tiles".format(*_winograd_sizes(call)),
)
# pointwise, which flipped_conv comes to, takes tiles of 64 pixels. lavapipe, us, flipped_conv and phase_blocks:
# 512->2048 over 7x7 8870 and 9000, 256->512 over two of 19x19 13660 and 18490, 128->512 over 28x28 7700 and 9060,
# 126->256 over eight of 2x2 1570 and 660, 28->672 over one pixel 255 and 128.
_LEAST_PIXELS = 32
PIXELS = Need(
    f"images of at least {_LEAST_PIXELS} pixels",
    lambda call, device: math.prod(call.shape("dx")[2:]) >= _LEAST_PIXELS,
    lambda call, device: f"{math.prod(call.shape('dx')[2:])} pixels",
)
# lavapipe, best of 3 runs, us, swap_1x1 and phase_blocks, stride 2: 512->256 to 50x50 12860 and 15960, 256->128 3480
# and 4060, 224->112 to 59x91 5870 and 6230, 224->32 to 118x182 6460 and 6950, 504->224 to 30x46 6270 and 6730; 128->64
# to 56x56 1380 and 1190, 64->32 530 and 380; 512->256 to 28x28 4890 and 4610, to 14x14 1920 and 1760.
_LONG_SUM, _MANY_PIXELS = 192, 256


def _sums(call: Call) -> tuple[int, int]:
    """Channels of dy that a product sums, and elements of a channel."""
    return call.shape("w")[0] // int(call["groups"]), math.prod(call.shape("dy")[2:])


LONG_SUMS = Need(
    f"{_LONG_SUM} channels of dy in a group and {_MANY_PIXELS} elements of each",
    lambda call, device: _sums(call)[0] >= _LONG_SUM and _sums(call)[1] >= _MANY_PIXELS,
    lambda call, device: "{} channels of {} elements".format(*_sums(call)),
)
_BLOCKS = tuple(TRANSPOSED.need(need) for need in FITS_BLOCKS)
_NARROW = TRANSPOSED.need(NARROW_GROUPS)
_WINOGRAD = (*FLIPPED_WINOGRAD.must, *FLIPPED_WINOGRAD.prefer)

_SWAP = Rule("swap_1x1", (KERNEL_1X1, STRIDED), "iree#23976: 2.81 to 6.82 times as fast on an MI355X")
_SCATTERS = (
    Rule("gather_scatter_conv", (FEW_PASSED_THROUGH,), "iree#23979: 1.19 to 1.77 times as fast on an MI355X"),
    Rule("fill_scatter_conv", (), "iree#23979"),
)
# lavapipe, best of 3 runs, us, phase_blocks, phase and what IREE's rule takes: 64->32 to 56x56 3x3 stride 2 1640, 3600,
# 8640; 64 in 8 groups to 50x50 3x3 stride 2 620, 1050, 2430; 32->3 to 112x112 3x3 stride 2 490, 1410, 4000; 1x1 stride
# 2 256->128 to 28x28 1800, 1650, 1410, 64->32 to 56x56 380, 560, 530, 512->256 to 14x14 1760, 1880, 1920, with bias
# 64->64 to 28x28 410, 810, 900. Stride 1, phase_blocks, phase, flipped_conv, flipped_winograd: 64x28x28 3x3 3400, 3590,
# 4570, 1910; 32x28x28 5x5 2570, 2290, 3650; 64x17x17 1x7 1120, 3190, 1690; 128x14x14 1x1 630, 780, 620; 64 groups 5x5
# over 28x28 1350, 520, 400.
_CPU = (
    Rule("flipped_winograd", (*_WINOGRAD, LARGE), "measured on lavapipe: 0.46 to 0.8 of the time of phase_blocks"),
    Rule("flipped_conv", (STRIDE_1, DEPTHWISE), "measured on lavapipe: a third of the time of phase_blocks"),
    Rule(
        "flipped_conv", (STRIDE_1, KERNEL_1X1, PIXELS), "measured on lavapipe: 0.74 to 1.08 of the time of phase_blocks"
    ),
    Rule(
        "swap_1x1", (KERNEL_1X1, STRIDED, LONG_SUMS), "measured on lavapipe: 0.81 to 0.94 of the time of phase_blocks"
    ),
    Rule("phase_blocks", _BLOCKS, "measured on lavapipe: 0.3 to 0.7 of the time of phase"),
    _SWAP,
    Rule("phase", (TRANSPOSED.need(SHORT_SPAN),), "measured on lavapipe: half the time of gather_scatter_conv or less"),
    Rule("flipped_conv", (STRIDE_1,), "iree#23976: nothing to dilate"),
    *_SCATTERS,
)
# By what they move and multiply: swap_1x1 writes and reads the small product once more than phase_gemm, but the latter
# writes dx in pieces of one element; other kernels multiply the dilated dy by stride x stride times as many products.
_GPUS = (
    Rule("flipped_winograd", _WINOGRAD, "as conv2d, measured on an H200"),
    Rule("flipped_conv", (STRIDE_1,), "iree#23976: nothing to dilate"),
    _SWAP,
    Rule("phase_blocks", (_NARROW, *_BLOCKS), "every element of dy read once and of dx written once, and no idle rows"),
    Rule("phase_gemm", FITS_SMALLEST, "as many products as needed, without scratch"),
    *_SCATTERS,
)
_RULES: Mapping[str, tuple[Rule, ...]] = {"cpu": _CPU}


def rule(call: Call, device: Device) -> Rule:
    """The row that holds for a call."""
    rows = _RULES.get(device.kind, _GPUS)
    return next(row for row in rows if all(need.test(call, device) for need in row.when))


def taken(route: str) -> Need:
    """The rules for such devices name the route."""
    return Need(
        "what the rules for such devices name",
        lambda call, device: rule(call, device).route == route,
        lambda call, device: str(rule(call, device)),
    )
