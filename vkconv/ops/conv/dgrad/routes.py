"""The routes of conv2d_backward_data, in their order."""

import dataclasses
import math

from vkconv.call import Call
from vkconv.core import shape_str
from vkconv.cost import lanes_us
from vkconv.device import Device, target_of
from vkconv.ops.conv.dgrad import as_conv
from vkconv.ops.conv.dgrad.as_transposed import TRANSPOSED
from vkconv.ops.conv.dgrad.reached import NO_CROP_BEFORE, as_reached, by_reached
from vkconv.ops.conv.tiles import FITS_SMALLEST
from vkconv.ops.conv.transpose.blocks import FITS_BLOCKS, NARROW_GROUPS, TRANSPOSED_BLOCKS, TRANSPOSED_PHASES
from vkconv.ops.conv.transpose.gemm import TRANSPOSED_GEMM
from vkconv.ops.conv.transpose.phases import FEW_PHASES
from vkconv.ops.conv.transpose.routes import SHORT_SPAN, TRANSPOSED_DIRECT, TRANSPOSED_TILE
from vkconv.ops.core.requirements import ON_CPU, ON_GPU, TILES_KEPT
from vkconv.ops.kernels.zero_insertion import few_passed_through
from vkconv.policy import Policy
from vkconv.requirement import Requirement
from vkconv.route import Route

_BLOCKS = tuple(TRANSPOSED.need(need) for need in FITS_BLOCKS)
_FEW_PHASES = TRANSPOSED.need(FEW_PHASES)


_SWAP = Policy("dgrad.swap_1x1", int)


def _operations(call: Call) -> int:
    return 2 * math.prod(call.shape("dy")) * math.prod(call.shape("w")[1:])


def _swap_pays(call: Call, device: Device) -> bool:
    blocks = all(need.test(call, device) for need in _BLOCKS)
    return not blocks or _operations(call) >= _SWAP.of(device)


SWAP_PAYS = Requirement(
    "as many operations as pay on such devices, or no route phase_blocks",
    _swap_pays,
    lambda call, device: (
        f"{_operations(call) / 1e6:.1f} million, at least {_SWAP.of(device) / 1e6:.0f} million ({_SWAP.said(device)})"
    ),
)


def _close(call: Call, device: Device) -> bool:
    """Whether inputs are as close together as kernels in registers have them, which CPU drivers alone are asked for."""
    return ON_GPU.test(call, device) or TRANSPOSED.need(SHORT_SPAN).test(call, device)


def _takes_phases(call: Call, device: Device) -> bool:
    return _close(call, device) and _FEW_PHASES.test(call, device)


_MORE_LAUNCHES = Policy("dgrad.reached", float)


def _lanes_us(call: Call, device: Device) -> float:
    """Microseconds that all lanes take at least for the multiply-adds of a call."""
    return lanes_us(_operations(call) / 2, target_of(device))


def _launches_us(device: Device) -> float:
    return _MORE_LAUNCHES.of(device) * target_of(device).value("launch_us")


def _reached_pays(call: Call, device: Device) -> bool:
    long = _lanes_us(call, device) >= _launches_us(device)
    return long and SWAP_PAYS.test(call, device) and _close(as_reached(call), device)


REACHED_PAYS = Requirement(
    f"{SWAP_PAYS.text}, that take no less than its launches; on a CPU inputs as close together as routes of phases "
    "take them",
    _reached_pays,
    lambda call, device: (
        f"{SWAP_PAYS.actual(call, device)}; {_lanes_us(call, device):.1f} us, launches {_launches_us(device):.1f} us "
        f"({_MORE_LAUNCHES.said(device)})"
    ),
)


_BEYOND_PHASES = Requirement(
    "a stride, and more phases, or on a CPU inputs further apart, than routes of phases take",
    lambda call, device: as_conv.STRIDED.test(call, device) and not _takes_phases(call, device),
    lambda call, device: f"stride {as_conv.STRIDED.actual(call, device)}, dilation {shape_str(call['dilation'])}",
)


def _by(route: Route, name: str, why: str) -> Route:
    """A route of the transposed convolution, whose kernels count from the first window on: nothing lies before it."""
    made = TRANSPOSED.route(route, name, why)
    return dataclasses.replace(made, must=(*made.must, NO_CROP_BEFORE))


def _preferring(route: Route, *prefer: Requirement) -> Route:
    return dataclasses.replace(route, prefer=prefer)


# swap_1x1 writes and reads the small product once more than phase_gemm, which writes dx in pieces of one element. The
# other kernels multiply the dilated dy by stride x stride times as many products. iree#23976 has swap_1x1 2.81 to 6.82
# times as fast on an MI355X; iree#23979 gathering 1.19 to 1.77 times as fast, and filling by DMA faster above a limit.
# lavapipe, us (least of 2):                                phase_blocks  phase   fill_scatter_conv
#   64 in 8 groups to 100x100, 3x3 stride 2                 1650          3710    5100
#   32 to 3, to 235x363, 3x3 stride 2                       2590          8870    21300
#   512 to 256, to 50x50, 1x1 stride 2                      9100          20800   26500
# One launch that gathers takes 1.36 to 2.85 times as long there. Stride 1: flipped_conv takes 0.4 to 1.15 times as long
# as phase_blocks. Beyond what phases take, where the dilated dy is nearly all zeros (lavapipe, us, least):
#                                                           col2im        phase_gemm  fill_scatter_conv  direct_gather
#   64 to 32, 14x14 to 31x107, 3x3 stride 2 dilation 2x40   1203          29526       740560             167807
#   64 to 32, 4x4 to 198x198, 3x3 stride 65                 14725                     69770              568528
_WITH_STRIDE_1_OR_1X1: tuple[Route, ...] = (
    as_conv.FLIPPED_COOPERATIVE,
    as_conv.SWAP_FRAGMENT,
    as_conv.SWAP_COOPERATIVE,
    as_conv.FLIPPED_WINOGRAD,
    as_conv.FLIPPED_CONV,
    _preferring(as_conv.SWAP_1X1, as_conv.STRIDED, SWAP_PAYS),
)
_STRIDED: tuple[Route, ...] = (
    _preferring(
        _by(
            TRANSPOSED_BLOCKS,
            "phase_blocks",
            "an invocation makes whole blocks of stride x stride elements of dx: an element of dy that it loads meets "
            "every tap, each at its place of a block, and rows of dx are written as they lie",
        ),
        TRANSPOSED.need(NARROW_GROUPS),
        TILES_KEPT,
        *_BLOCKS,
    ),
    _preferring(
        _by(
            TRANSPOSED_PHASES,
            "phase_gemm",
            "elements of dx one stride apart are a dense convolution of dy by the taps that reach them: tiles of its "
            "matrix product in shared memory, stride x stride of them in one launch, nothing dilated or scattered",
        ),
        ON_GPU,
        _FEW_PHASES,
        *FITS_SMALLEST,
    ),
    _preferring(
        _by(
            TRANSPOSED_TILE,
            "phase",
            "elements of dx one stride apart are a dense convolution of dy by the taps that reach them, in register "
            "tiles, and nothing is dilated or scattered",
        ),
        ON_CPU,
        _FEW_PHASES,
        TRANSPOSED.need(SHORT_SPAN),
    ),
    _preferring(
        _by(
            TRANSPOSED_GEMM,
            "col2im",
            "every element of dy meets every tap: a plain matrix product of the whole, with w as it lies, and a cheap "
            "sum of what reaches each element of dx",
        ),
        _BEYOND_PHASES,
    ),
    _preferring(as_conv.GATHER_SCATTER_CONV, few_passed_through(as_conv.dilation)),
    as_conv.FILL_SCATTER_CONV,
    TRANSPOSED.route(
        TRANSPOSED_DIRECT,
        "direct_gather",
        "one element of dx per invocation, which sums exactly the taps that reach it: takes every call of floats",
    ),
)
ROUTES: tuple[Route, ...] = (
    *_WITH_STRIDE_1_OR_1X1,
    by_reached((*_WITH_STRIDE_1_OR_1X1, *_STRIDED), REACHED_PAYS),
    *_STRIDED,
)
