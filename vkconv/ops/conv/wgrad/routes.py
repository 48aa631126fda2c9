"""The routes of a convolution's gradient by its weights, in their order."""

import dataclasses
from functools import partial

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import bytes_str, shape_str
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.conv.wgrad import coopmat, depthwise, depthwise_planes, explicit, split, winograd
from vkconv.ops.conv.wgrad.combine import COMBINE
from vkconv.ops.conv.wgrad.images import IN_ONE_BINDING
from vkconv.ops.conv.wgrad.kernels import ATOMIC_CAS, ATOMIC_FLOAT, SUBGROUPS
from vkconv.ops.conv.wgrad.policy import AUTO, BANDS, IMAGES, IREE, OCCUPANCY, WHOLE, Policy
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.conv.wgrad.terms import with_operands_of_one_type, with_terms
from vkconv.ops.core.base import defaults
from vkconv.ops.core.requirements import (
    FLOATS,
    INT32,
    MOST_INT,
    NO_HALVES,
    ON_GPU,
    loop_iterations,
    loops_end,
    takes_less,
    within_scratch,
)
from vkconv.ops.kernels.coopmat import HALF
from vkconv.ops.kernels.coopmat import NEEDS as MATRIX_NEEDS
from vkconv.ops.kernels.coopmat_gemm import PRODUCT_TO_F32
from vkconv.ops.kernels.products import SHADERS as PRODUCTS
from vkconv.ops.kernels.winograd import BY_CHANNEL, INPUT, OUTPUTS, kernels_str
from vkconv.ops.kernels.winograd import SOURCE as WINOGRAD_SOURCE
from vkconv.requirement import Requirement
from vkconv.route import Route

_VARIANTS = (
    Shader(shaders.wgrad.BACKWARD_WEIGHT_GEMM),
    Shader(shaders.wgrad.BACKWARD_WEIGHT_ROWS),
    Shader(shaders.wgrad.BACKWARD_WEIGHT_SKINNY),
    Shader(shaders.wgrad.BACKWARD_WEIGHT_ROWS, defines=SUBGROUPS),
)
_ATOMIC = tuple(dataclasses.replace(s, defines=(*d, *s.defines)) for s in _VARIANTS for d in (ATOMIC_CAS, ATOMIC_FLOAT))


def _slices(call: Call, device: Device) -> int:
    return AUTO.slices(WeightGradient.of(call), device)


# Kernels round pixels up to k-tiles: what they add must not overflow.
_MOST_PIXELS = MOST_INT - 512
PIXELS_INT32 = Requirement.of(
    f"sums over at most {_MOST_PIXELS} pixels",
    WeightGradient.of,
    lambda p: p.pixels <= _MOST_PIXELS,
    lambda p: str(p.pixels),
)
SLICES_INT32 = Requirement(
    "fewer than 2^31 partial results to add",
    lambda call, device: _slices(call, device) * WeightGradient.of(call).size <= MOST_INT,
    lambda call, device: f"{_slices(call, device)} slices of {WeightGradient.of(call).size}",
)
POINTWISE = Requirement(
    "a kernel of one tap, stride 1 and no padding",
    lambda call, device: WeightGradient.of(call).pointwise,
    lambda call, device: (
        f"{shape_str(call['w_shape'][2:])}, stride {shape_str(call['stride'])}, padding {shape_str(call['padding'])}"
    ),
)
SEVERAL_SLICES = Requirement(
    "more than one slice",
    lambda call, device: _slices(call, device) > 1,
    lambda call, device: f"{_slices(call, device)} slices",
)
WINDOW = Requirement(
    f"a {kernels_str()} kernel of two dimensions, stride 1 and no dilation",
    lambda call, device: _window(WeightGradient.of(call)),
    lambda call, device: (
        f"{shape_str(call['w_shape'][2:])}, stride {shape_str(call['stride'])}, dilation {shape_str(call['dilation'])}"
    ),
)
LONG_SUMS = Requirement(
    f"at least {winograd.LEAST_PIXELS_5X5} pixels for a 5x5 kernel",
    lambda call, device: _long_sums(WeightGradient.of(call)),
    lambda call, device: f"{WeightGradient.of(call).pixels} pixels",
)
WINOGRAD_INT32 = Requirement(
    "scratch of fewer than 2^31 elements",
    lambda call, device: winograd.scratch_elements(call, device) <= MOST_INT,
    lambda call, device: f"{winograd.scratch_elements(call, device)} elements",
)
TAPS_THAT_PAY = Requirement(
    "a kernel of a size that pays on such devices",
    lambda call, device: WeightGradient.of(call).kernel[2] in winograd.LEAST.of(device).taps,
    lambda call, device: f"{shape_str(call['w_shape'][2:])}, taken for {kernels_str(winograd.LEAST.of(device).taps)}",
)
MANY_CHANNELS = Requirement(
    "as many channels of a group, and pixels, as pay on such devices",
    lambda call, device: _pays(WeightGradient.of(call), device),
    lambda call, device: _extent(WeightGradient.of(call), device),
)


def _extent(p: WeightGradient, device: Device) -> str:
    least = winograd.LEAST.of(device)
    return (
        f"{p.channels} in, {p.rows} out, {p.pixels} pixels, {bytes_str(winograd.counted_bytes(p))} transformed; at "
        f"least {least.channels} channels and {least.pixels} pixels, and {least.uncached_channels} beyond "
        f"{least.cache_mib} MiB ({winograd.LEAST.said(device)})"
    )


def _window(p: WeightGradient) -> bool:
    ones = (1, 1, 1)
    square = p.kernel[1] == p.kernel[2] and p.kernel[2] in OUTPUTS
    return not p.deep and square and p.stride == p.dilation == ones


def _long_sums(p: WeightGradient) -> bool:
    return p.kernel[2] == 3 or p.pixels >= winograd.LEAST_PIXELS_5X5


def _pays(p: WeightGradient, device: Device) -> bool:
    least, fewer = winograd.LEAST.of(device), min(p.channels, p.rows)
    cached = fewer >= least.uncached_channels or winograd.counted_bytes(p) <= least.cache_mib << 20
    return fewer >= least.channels and p.pixels >= least.pixels and cached


_MUST = (FLOATS, INT32, PIXELS_INT32)


def _compared(call: Call, device: Device) -> tuple[float, float] | None:
    """Estimated us of explicit_gemm and of two_stage, which is direct where it has one slice, by their defaults."""
    own = explicit.estimated_us(call, device, defaults(explicit.params(call, device)))
    other = split.estimated_us(call, device, defaults(split.params(call, device, (AUTO,)))) if own else None
    return None if own is None or other is None else (own, other)


_LESS_THAN_SPLIT = takes_less(_compared, " than the split routes take")


def _split_route(
    name: str, policies: split.Policies, why: str, source: str, prefer: tuple[Requirement, ...] = (), opt_in: str = ""
) -> Route:
    """A route that stores split-K slices and sums them."""
    default: Policy = policies[0]
    return Route(
        name,
        partial(split.build, policies=policies),
        (COMBINE, *_VARIANTS),
        why=why,
        must=(*_MUST, within_scratch(split.scratch_bytes(default)), loop_iterations(split.iterations(default))),
        prefer=prefer,
        source=source,
        params=partial(split.params, policies=policies),
        follow=split.follow,
        note=partial(split.note, policies=policies),
        estimated_us=split.estimated_us,
        opt_in=opt_in,
    )


_ROUTES: tuple[Route, ...] = (
    Route(
        "explicit_cooperative",
        explicit.build_cooperative,
        (COMBINE, PRODUCT_TO_F32),
        why="one tap of 16-bit floats: the product of each image and group by the GPU's matrix units, f32 "
        "slices, then the sum over images",
        must=(*MATRIX_NEEDS, INT32, PIXELS_INT32, POINTWISE, *explicit.MUST, IN_ONE_BINDING),
        prefer=(ON_GPU, explicit.FILLS_MATRICES),
        source="composable_kernel#2947",
        params=explicit.params_cooperative,
        note=explicit.note,
    ),
    Route(
        "cooperative",
        coopmat.build,
        (COMBINE, coopmat.GRADIENT),
        why="implicit GEMM on the GPU's matrix units, f16 in and f32 sums, in as many split-K slices as keep the "
        "device busy; windows are gathered eight channels at a time, a second pass adds the slices in a fixed order",
        must=(
            *MATRIX_NEEDS,
            coopmat.SOME_TILE,
            INT32,
            PIXELS_INT32,
            within_scratch(coopmat.scratch_bytes),
            loop_iterations(coopmat.iterations),
            IN_ONE_BINDING,
        ),
        prefer=(ON_GPU, coopmat.FILLS_TILES),
        source="composable_kernel#2947",
        params=coopmat.params,
        note=coopmat.note,
        estimated_us=coopmat.estimated_us,
    ),
    Route(
        "depthwise_planes",
        depthwise_planes.build,
        (COMBINE, depthwise_planes.TREE, depthwise_planes.SUBGROUPS),
        why="one input channel per group: ranges of x and dy are copied into shared memory as they lie, and the next "
        "ones are on their way while lanes multiply; a second pass adds the slices in a fixed order",
        must=(
            *_MUST,
            *depthwise_planes.MUST,
            IN_ONE_BINDING,
            loops_end(depthwise_planes.build, depthwise_planes.params),
        ),
        prefer=depthwise_planes.PREFER,
        params=depthwise_planes.params,
        note=depthwise_planes.note,
    ),
    Route(
        "depthwise",
        depthwise.build,
        (COMBINE, depthwise.TREE, depthwise.SUBGROUPS),
        why="one input channel per group: lanes go down strips of columns with the sums of all taps in registers, so "
        "that x and dy are loaded once; a second pass adds the slices in a fixed order",
        must=(*_MUST, *depthwise.MUST, IN_ONE_BINDING, loops_end(depthwise.build, depthwise.params)),
        prefer=depthwise.PREFER,
        params=depthwise.params,
        note=depthwise.note,
        estimated_us=depthwise.estimated_us,
    ),
    Route(
        "winograd",
        winograd.build,
        (INPUT, winograd.GRADIENTS, BY_CHANNEL, winograd.TAPS, *_VARIANTS),
        why="3x3 with stride 1 takes 2.25 or 4 times fewer products between cheap transforms of tiles, 5x5 2.78 or "
        "6.25 times; an input that is not finite makes NaN of all taps that its tile meets",
        must=(
            *(*_MUST, WINDOW, LONG_SUMS, WINOGRAD_INT32),
            within_scratch(winograd.slices_bytes),
            IN_ONE_BINDING,
            loops_end(winograd.build, winograd.params),
        ),
        prefer=(TAPS_THAT_PAY, MANY_CHANNELS),
        source=WINOGRAD_SOURCE,
        params=winograd.params,
        follow=winograd.follow,
        note=winograd.note,
        estimated_us=winograd.estimated_us,
    ),
    Route(
        "explicit_gemm",
        explicit.build,
        (COMBINE, *PRODUCTS),
        why="one tap: a plain matrix product of each image and group, dy by x transposed, then the sum over images",
        must=(*_MUST, POINTWISE, *explicit.MUST, IN_ONE_BINDING),
        prefer=(_LESS_THAN_SPLIT,),
        source="composable_kernel#2947",
        params=explicit.params,
        note=explicit.note,
        estimated_us=explicit.estimated_us,
    ),
    _split_route(
        "split_n",
        (IMAGES,),
        "each slice sums some of the images; a second pass adds the slices in a fixed order",
        "iree#22275",
        opt_in="two_stage fills the device",
    ),
    _split_route(
        "split_multi",
        (BANDS, IREE),
        "each slice sums a box of images, rows and columns, sized by bands of the output; a second pass adds the "
        "slices in a fixed order",
        "iree#22491",
        opt_in="two_stage fills the device",
    ),
    _split_route(
        "two_stage",
        (AUTO, BANDS, OCCUPANCY),
        "as many equal slices as keep the device busy, wherever an image ends; a second pass adds them in a fixed "
        "order, scales and adds",
        "composable_kernel#2947",
        prefer=(SEVERAL_SLICES,),
    ),
    Route(
        "one_stage",
        partial(split.build_atomic, policies=(AUTO, BANDS, OCCUPANCY)),
        (COMBINE, *_ATOMIC),
        why="slices that are added to dw by atomic operations: no scratch, but the order of the adds changes from run "
        "to run, and the last bits with it",
        must=(NO_HALVES, *_MUST, SLICES_INT32, loop_iterations(split.iterations(AUTO))),
        source="composable_kernel#2947",
        params=partial(split.params, policies=(AUTO, BANDS, OCCUPANCY), atomic=True),
        follow=split.follow,
        note=split.note_atomic,
        deterministic=False,
        opt_in="the slices are added in another order each time",
    ),
    Route(
        "direct",
        partial(split.build, policies=(WHOLE,)),
        _VARIANTS,
        why="each workgroup sums everything of its outputs: no scratch and no second pass",
        must=(*_MUST, loop_iterations(split.iterations(WHOLE))),
        params=partial(split.params, policies=(WHOLE,)),
        estimated_us=split.estimated_us,
        note=lambda call, device, params: f"the whole sum; no scratch; {params['tile']}",
    ),
)
_OF_OPERANDS = {need: with_operands_of_one_type(need) for need in (FLOATS, HALF)}
ROUTES: tuple[Route, ...] = tuple(
    dataclasses.replace(
        route,
        program=with_terms(route.program),
        shaders=tuple(dict.fromkeys((*route.shaders, COMBINE))),
        must=tuple(_OF_OPERANDS.get(need, need) for need in route.must),
    )
    for route in _ROUTES
)
