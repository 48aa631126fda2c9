"""conv2d_backward_data by plain convolutions of stride 1 with the flipped filter: of dy itself, of dy dilated by the
stride, or of dy as it is where the kernel is 1x1, with the result dilated instead."""

import math
from collections.abc import Callable, Mapping

from vkconv.call import Call
from vkconv.core import DType, shape_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops.conv.common import KERNEL_1X1, LARGER_THAN_1X1, STRIDE_1
from vkconv.ops.conv.conv2d import coopmat_fragment
from vkconv.ops.conv.conv2d.coopmat import COOPERATIVE, StridedScatter, cooperative, whole_sums
from vkconv.ops.conv.conv2d.coopmat_fragment import COOPERATIVE_FRAGMENT, in_fragment_order
from vkconv.ops.conv.conv2d.routes import ROUTES
from vkconv.ops.conv.conv2d.space_to_depth import SPACE_TO_DEPTH
from vkconv.ops.conv.conv2d.winograd import WINOGRAD
from vkconv.ops.core.requirements import FLOATS, INT32
from vkconv.ops.core.views import View
from vkconv.ops.kernels.coopmat import HALF
from vkconv.ops.kernels.epilogue import NO_EPILOGUE, Epilogue, keeps_zeros
from vkconv.ops.kernels.strided import STRIDED_COPY, strided_copy, walk_defaults
from vkconv.ops.kernels.zero_insertion import FILL_SCATTER, GATHER, GATHER_EPILOGUE, Insertion, gathers
from vkconv.program import Composite, Dispatch, Inner, Program
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route, Sub

# What does the convolution: of these, the one that conv2d would take for it. All sum in the order of the taps.
_OTHERS = COOPERATIVE_FRAGMENT, COOPERATIVE, WINOGRAD, SPACE_TO_DEPTH
_CONVOLUTIONS = tuple(route for route in ROUTES if route.rounds_as_f32 and route not in _OTHERS)
_OF_1X1 = tuple(route for route in _CONVOLUTIONS if LARGER_THAN_1X1 not in route.must)
Steps = tuple[Dispatch, ...]
Sizes = Mapping[str, int]


def _convolution(call: Call, dy: tuple[int, ...], padding: tuple[int, ...], dx: tuple[int, ...], act: bool) -> Call:
    """A convolution of stride 1 of ``dy`` to ``dx`` with the flipped filter; a padding below 0 crops. Without ``act``
    it is one without bias and activation."""
    c_out, in_group, kh, kw = call.shape("w")
    groups = int(call["groups"])
    attrs = {name: call[name] for name in ("dilation", "groups", *NO_EPILOGUE)}
    attrs |= {"stride": (1, 1), "padding": padding, "auto_pad": "explicit"}
    attrs |= {} if act else NO_EPILOGUE
    dtype = call.half or DType.F32
    w = TensorSpec((in_group * groups, c_out // groups, kh, kw), dtype)
    epilogue = {name: call.operands.get(name) if act else None for name in ("b", "slope")}
    operands = {"x": TensorSpec(dy, dtype), "w": w, **epilogue}
    return Call("conv2d", operands, {"y": TensorSpec(dx, dtype)}, attrs)


def _reach(call: Call) -> tuple[int, int]:
    """Rows and columns from the first to the last that the kernel covers, less one."""
    h, w = (d * (k - 1) for d, k in zip(call["dilation"], call.shape("w")[2:], strict=True))
    return h, w


def as_flipped(call: Call) -> Call:
    """A call of stride 1 as a convolution of dy."""
    pads = tuple(reach - p for reach, p in zip(_reach(call) * 2, call["padding"], strict=True))
    return _convolution(call, call.shape("dy"), pads, call.shape("dx"), True)


def dilation(call: Call) -> Insertion:
    """dy in zeros, as large as the windows of dx: elements a stride apart, so much padded that the rest is a
    convolution without padding."""
    (h, w), reach = call.shape("dx")[2:], _reach(call)
    offset = (0, 0, reach[0] - call["padding"][0], reach[1] - call["padding"][1])
    extents = (*call.shape("dy")[:2], h + reach[0], w + reach[1])
    return Insertion(call.shape("dy"), extents, offset, (1, 1, *call["stride"]))


def as_dilated(call: Call) -> Call:
    """A call as a convolution of the dilated dy."""
    return _convolution(call, tuple(dilation(call).y), (0, 0, 0, 0), call.shape("dx"), True)


def as_small(call: Call, act: bool = False) -> Call:
    """A call of a 1x1 kernel as a convolution of dy as it is."""
    small = (*call.shape("dx")[:2], *call.shape("dy")[2:])
    return _convolution(call, call.shape("dy"), (0, 0, 0, 0), small, act)


def result(call: Call) -> Insertion:
    """What `as_small` makes, in zeros: dx. Padding moves it off the edge."""
    t, left, _, _ = call["padding"]
    small = (*call.shape("dx")[:2], *call.shape("dy")[2:])
    return Insertion(small, call.shape("dx"), (0, 0, -t, -left), (1, 1, *call["stride"]))


def _flip(call: Call, device: Device) -> tuple[Dispatch, ...]:
    """The launch that turns w round: taps last to first, channels of a group in place of each other."""
    c_out, in_group, kh, kw = call.shape("w")
    groups, taps = int(call["groups"]), kh * kw
    out_group = c_out // groups
    of = (out_group * in_group * taps, taps, in_group * taps, -1)
    to = (out_group * in_group * taps, out_group * taps, taps, 1)
    return strided_copy(
        device, walk_defaults(device), "w", "flipped", (groups, in_group, out_group, taps), of, to, taps - 1
    )


_INNER = "conv2d"


def _by(of: Callable[[Call], Call], *routes: Route) -> Callable[[Call, Device, Params], Mapping[str, Sub]]:
    """The convolution inside a route: that of `of`, by one of these routes."""
    return lambda call, device, params: {_INNER: Sub(of(call), routes)}


def _convolve(
    call: Call, device: Device, x: str, y: str, before: Steps = (), after: Steps = (), scratch: Sizes | None = None
) -> Composite:
    """A convolution of ``x`` to ``y`` whose weights are w, flipped once, between other steps; ``scratch`` is of
    elements."""
    inner = Inner(_INNER, {"x": x, "y": y, "w": "flipped"})
    return Composite(
        (*before, inner, *after),
        _flip(call, device),
        {"flipped": 4 * math.prod(call.shape("w"))},
        scratch or {},
        frozenset({"flipped", *(scratch or {})}),
    )


def _build_flipped(call: Call, device: Device, params: Params) -> Composite:
    return _convolve(call, device, "dy", "dx")


def _build_dilated(call: Call, device: Device, params: Params, gather: bool) -> Composite:
    insertion = dilation(call)
    if gather:
        scatter: Steps = (insertion.gather(device, walk_defaults(device), "dy", "dilated"),)
    else:
        scatter = insertion.fill_scatter(device, walk_defaults(device), "dy", "dilated")
    return _convolve(call, device, "dilated", "dx", before=scatter, scratch={"dilated": 4 * math.prod(insertion.y)})


def _build_swap(call: Call, device: Device, params: Params) -> Composite:
    insertion = result(call)
    if not keeps_zeros(call):
        # What is 0 in dx has a bias and an activation as well: they come with the zeros, by channel.
        e, channels = Epilogue.of(call, device, target="dx"), call.shape("dx")[1]
        scatter: Steps = (insertion.gather_finished(device, walk_defaults(device), "small", e, channels),)
    elif params["gather"]:
        scatter = (insertion.gather(device, walk_defaults(device), "small", "dx"),)
    else:
        scatter = insertion.fill_scatter(device, walk_defaults(device), "small", "dx")
    made = _convolve(call, device, "dy", "small", after=scatter, scratch={"small": 4 * math.prod(insertion.x)})
    return made if keeps_zeros(call) else Epilogue.of(call, device).complete(made, call.shape("dx"), device)


def _build_swap_scatter(
    call: Call,
    device: Device,
    params: Params,
    route: Route,
    program: Callable[[Call, Device, Params, StridedScatter | None], Program],
) -> Program:
    conv = as_small(call, act=True)
    inner = {name: value for name, value in params.items() if name not in ("gather", "scatter")}
    if params["scatter"]:
        scatter = StridedScatter((call.shape("dx")[2], call.shape("dx")[3]), call["stride"])
        return _convolve(call, device, "dy", "dx").linked_to(program(conv, device, inner, scatter))
    made = route.program(conv, device, inner)
    assert isinstance(made, Program)
    return _build_swap(call, device, params).linked_to(made)


def _swap_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    gather = gathers(result(call), device) or not keeps_zeros(call)
    both = (int(gather), int(not gather)) if keeps_zeros(call) else (1,)
    return {"gather": both}


STRIDED = Requirement(
    "a stride above 1", lambda call, device: call["stride"] != (1, 1), lambda call, device: shape_str(call["stride"])
)
_SHADERS = tuple(dict.fromkeys((STRIDED_COPY, *(shader for route in _CONVOLUTIONS for shader in route.shaders))))

FLIPPED_WINOGRAD = Route(
    "flipped_winograd",
    _build_flipped,
    (STRIDED_COPY, *WINOGRAD.shaders),
    why="stride 1 is a plain convolution of dy with the flipped filter, and a 3x3 one takes fewer products between "
    "transforms of tiles; an element of dy that is not finite makes NaN of the whole tiles that it is in",
    must=(FLOATS, STRIDE_1),
    prefer=tuple(View(as_flipped, {}).need(need) for need in WINOGRAD.prefer),
    source=WINOGRAD.source,
    inner=_by(as_flipped, WINOGRAD),
)
# What is rounded to 16 bits on its way to zeros must be a result.
_KEEPS_ZEROS = Requirement(
    "a bias and activation that leave 0 as it is",
    lambda call, device: keeps_zeros(call),
    lambda call, device: f"act {call['act']}, {'a' if call.has('b') else 'no'} bias",
)

KEEPS_ZEROS_IF_HALF = Requirement(
    f"{_KEEPS_ZEROS.text}, or f32",
    lambda call, device: call.half is None or keeps_zeros(call),
    _KEEPS_ZEROS.actual,
)


def _by_matrices(of: Callable[[Call], Call], route: Route) -> tuple[tuple[Requirement, ...], tuple[Requirement, ...]]:
    """What the convolution by cooperative matrices needs to be right, and to be fast."""
    view = View(of, {})
    must = (HALF, *(view.need(need) for need in route.must if need is not HALF))
    return must, tuple(view.need(need) for need in route.prefer)


def _swap(
    name: str,
    route: Route,
    program: Callable[[Call, Device, Params, StridedScatter | None], Program],
    inner: Callable[[Call, Device], Legal],
    how: str,
) -> Route:
    """The route by a convolution of the small dy, ``program``, that may scatter its results; it takes ``inner`` of the
    parameters of ``route``."""
    must, prefer = _by_matrices(as_small, route)
    return Route(
        name,
        lambda call, device, params: _build_swap_scatter(call, device, params, route, program),
        (STRIDED_COPY, *route.shaders, GATHER, *FILL_SCATTER),
        why=f"a 1x1 kernel makes elements of dx from one of dy each: the product of the small dy by the GPU's matrix "
        f"units{how}, and zeros put between its results, as these are stored where nothing is padded",
        must=(KERNEL_1X1, _KEEPS_ZEROS, INT32, *must),
        prefer=(STRIDED, *prefer),
        source="iree#23976, SwapStridedInsertSliceWithContraction",
        params=lambda call, device: {
            # Unpadded, every element of dx is less than a stride behind a result, with which its zeros can be stored.
            "scatter": (0,) if any(call["padding"]) else (1, 0),
            "gather": _swap_params(call, device)["gather"],
            **inner(as_small(call), device),
        },
    )


_FLIPPED_NEEDS = _by_matrices(as_flipped, COOPERATIVE)
FLIPPED_COOPERATIVE = Route(
    "flipped_cooperative",
    _build_flipped,
    tuple(dict.fromkeys((STRIDED_COPY, *COOPERATIVE.shaders, *COOPERATIVE_FRAGMENT.shaders))),
    why="stride 1 is a plain convolution of dy with the flipped filter, and of 16-bit floats one for matrix units",
    must=(HALF, STRIDE_1),
    prefer=_FLIPPED_NEEDS[1],
    source=COOPERATIVE.source,
    inner=_by(as_flipped, COOPERATIVE_FRAGMENT, COOPERATIVE),
)
# Only whole sums are scattered, without split-K.
SWAP_COOPERATIVE = _swap("swap_cooperative", COOPERATIVE, cooperative, whole_sums, "")
_HOW = ", both operands straight into registers"
SWAP_FRAGMENT = _swap("swap_fragment", COOPERATIVE_FRAGMENT, in_fragment_order, coopmat_fragment.whole_sums, _HOW)
FLIPPED_CONV = Route(
    "flipped_conv",
    _build_flipped,
    _SHADERS,
    why="stride 1 is a plain convolution of dy with the filter flipped once, by the route that conv2d takes for it",
    must=(FLOATS, STRIDE_1),
    source="iree#23976",
    inner=_by(as_flipped, *_CONVOLUTIONS),
)
SWAP_1X1 = Route(
    "swap_1x1",
    _build_swap,
    (*_SHADERS, GATHER, GATHER_EPILOGUE, *FILL_SCATTER),
    why="a 1x1 kernel makes elements of dx from one of dy each: the product of the small dy, and zeros put between its "
    "results instead of its operands; bias and activation come before the zeros only where they leave 0 as it is",
    must=(FLOATS, KERNEL_1X1, KEEPS_ZEROS_IF_HALF),
    source="iree#23976, SwapStridedInsertSliceWithContraction",
    params=_swap_params,
    # With the bias and activation, unless these come with the zeros.
    inner=_by(lambda call: as_small(call, act=keeps_zeros(call)), *_OF_1X1),
)
GATHER_SCATTER_CONV = Route(
    "gather_scatter_conv",
    lambda call, device, params: _build_dilated(call, device, params, gather=True),
    (*_SHADERS, GATHER),
    why="dy dilated by the stride, every element of that written once, then a plain convolution with a flipped filter",
    must=(FLOATS,),
    source="iree#23979",
    inner=_by(as_dilated, *_CONVOLUTIONS),
)
FILL_SCATTER_CONV = Route(
    "fill_scatter_conv",
    lambda call, device, params: _build_dilated(call, device, params, gather=False),
    (*_SHADERS, *FILL_SCATTER),
    why="zeros, dy scattered over them a stride apart, then a plain convolution with the flipped filter: multiplies "
    "zeros, in as many copies of dy as the stride has phases",
    must=(FLOATS,),
    source="iree#23976, what its passes replace",
    inner=_by(as_dilated, *_CONVOLUTIONS),
)
