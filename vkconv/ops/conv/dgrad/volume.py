"""The gradient of a convolution of three dimensions by its input.

dy is (N, C_out, OD, OH, OW), w is (C_out, C_in / groups, KD, KH, KW), dx is (N, C_in, D, H, W), whose shape ``x_shape``
gives: a stride leaves it open. An element of dx is the sum, over channels of dy of its group and taps, of dy times w
where the tap met it; 0 where none did. A negative padding crops x.
"""

import itertools
import math
from collections.abc import Iterator

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import GraphError, bytes_str, ceil_div, shape_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.conv.by_images import with_by_images
from vkconv.ops.conv.col2im import COL2IM_SHADER, blocks_added
from vkconv.ops.conv.wgrad.problem import check_extents, paddings, per_axis
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs, over_invocations
from vkconv.ops.core.requirements import FLOATS, INT32, loop_iterations
from vkconv.ops.core.shapes import groups_of, ints, one_float_dtype, operand
from vkconv.ops.core.tolerance import addends, largest, of_error, rounding_of_sum, shows_addends
from vkconv.ops.core.workgroups import alone_by_default
from vkconv.ops.kernels.compiled import element_of
from vkconv.ops.kernels.epilogue import Epilogue
from vkconv.ops.kernels.gemm import GemmProblem
from vkconv.ops.kernels.products import SCRATCH_BYTES, SHADERS, Slab, product, slabs
from vkconv.ops.kernels.products import params as product_params
from vkconv.ops.kernels.strided import local_params
from vkconv.program import Argument, Dispatch, Program
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route

_NAME, _RANK = "conv3d_backward_data", 3
DIRECT = Shader(shaders.conv.CONV3D_BACKWARD_DATA)


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    dy, w, x = operand(specs, "dy", _NAME), operand(specs, "w", _NAME), ints(attrs["x_shape"])
    if len(dy.shape) != 5 or len(w.shape) != 5 or len(x) not in (3, 5):
        raise GraphError(
            f"{_NAME} takes dy (N, C_out, OD, OH, OW), w (C_out, C_in/groups, KD, KH, KW) and x_shape (D, H, W) or (N, "
            f"C_in, D, H, W), not {dy}, {w} and {shape_str(x)}"
        )
    one_float_dtype(_NAME, dy, w)
    groups = groups_of(_NAME, attrs)
    (n, count, *out), (c_out, per_group, *kernel) = dy.dims, w.dims
    if count < 1 or count != c_out:
        raise GraphError(f"{_NAME}: dy has {count} channels, but w makes {c_out}")
    if c_out % groups or min(per_group, *kernel) < 1:
        raise GraphError(
            f"{_NAME}: w is {shape_str(w.dims)} and has {groups} groups; channels divide into groups, all sizes are at "
            "least 1"
        )
    extent, shape = x[-3:], (n, per_group * groups, *x[-3:])
    if min(extent) < 1 or x not in (extent, shape):
        raise GraphError(
            f"{_NAME}: x_shape is {shape_str(x)}; with {n} images of dy and {per_group * groups} input channels of w "
            f"it is (D, H, W) or {shape_str(shape[:2])}xDxHxW, D, H and W of at least 1"
        )
    stride, dilation = per_axis(_NAME, attrs, "stride", _RANK), per_axis(_NAME, attrs, "dilation", _RANK)
    padding = paddings(_NAME, attrs, _RANK, crops=True)
    for axis, has, first, last in zip("dhw", extent, padding, padding[_RANK:], strict=False):
        if (cropped := -min(first, 0) - min(last, 0)) >= has:
            raise GraphError(
                f"{_NAME}: along {axis} a padding of {first} and {last} crops {cropped} of {has}; one must stay"
            )
    check_extents(_NAME, extent, out, kernel, stride, padding, dilation)
    canonical: Attrs = {"x_shape": shape, "stride": stride, "padding": padding, "dilation": dilation}
    return {**attrs, **canonical}, (TensorSpec(shape, dy.dtype),)


def _reference(call: Call, arrays: Arrays) -> Outputs:
    dy, w = (np.asarray(arrays[name], np.float64) for name in ("dy", "w"))
    (n, c_in, *extent), groups = call.shape("dx"), call["groups"]
    (_, c_out, *out), kernel = dy.shape, w.shape[2:]
    grouped = dy.reshape(n, groups, c_out // groups, math.prod(out))
    dx = np.zeros((n, c_in, *extent))
    of_tap = np.moveaxis(w, (0, 1), (-2, -1))
    for tap in itertools.product(*map(range, kernel)):
        taken = of_tap[tap].reshape(groups, c_out // groups, c_in // groups).swapaxes(1, 2)
        products = (taken @ grouped).reshape(n, c_in, *out)
        to, of = [], []
        for i, t in enumerate(tap):
            place = np.arange(out[i]) * call["stride"][i] + t * call["dilation"][i] - call["padding"][i]
            inside = np.flatnonzero((place >= 0) & (place < extent[i]))
            to.append(place[inside])
            of.append(inside)
        images, channels = np.arange(n), np.arange(c_in)
        dx[np.ix_(images, channels, *to)] += products[np.ix_(images, channels, *of)]
    return [dx]


def terms(call: Call) -> int:
    """Products that the element of dx with the most of them sums."""
    steps = (s // math.gcd(s, d) for s, d in zip(call["stride"], call["dilation"], strict=True))
    taps = math.prod(ceil_div(k, step) for k, step in zip(call.shape("w")[2:], steps, strict=True))
    return max(1, call.shape("w")[0] // int(call["groups"]) * taps)


def _magnitude(call: Call, arrays: Arrays, reference: F64) -> F64:
    count = terms(call)
    if count == 1:
        return np.abs(reference)
    if shows_addends(reference):
        return np.asarray(largest(reference))
    error = rounding_of_sum(addends(_reference, call, arrays), count)
    return np.asarray(np.fmax(largest(reference), of_error(call, reference, error, count)))


def _geometry(call: Call) -> dict[str, Argument]:
    """What shaders/conv/blocks.glsl reads: blocks are the windows of dy."""
    axes = {"image": call.shape("dx")[2:], "kernel": call.shape("w")[2:], "blocks": call.shape("dy")[2:]}
    return {**axes, "stride": call["stride"], "dilation": call["dilation"], "before": call["padding"][:_RANK]}


def _plane_bytes(call: Call) -> int:
    """Products that are added up into one plane of dx."""
    return 4 * math.prod(call.shape("w")[2:]) * math.prod(call.shape("dy")[2:])


def in_parts(call: Call) -> Iterator[tuple[Slab, int, int]]:
    """Images and groups whose products are made together, and of the channels of a group the first and how many."""
    in_group, groups = call.shape("w")[1], int(call["groups"])
    most = SCRATCH_BYTES // _plane_bytes(call)
    if most >= in_group:
        for slab in slabs(call.shape("dy")[0], groups, most // in_group):
            yield slab, 0, in_group
        return
    for image, group in itertools.product(range(call.shape("dy")[0]), range(groups)):
        for first in range(0, in_group, most):
            yield Slab(image, 1, group, 1), first, min(most, in_group - first)


def _problem(call: Call, slab: Slab, first: int, count: int) -> GemmProblem:
    """w (C_in / groups taps, C_out / groups), as it lies, by dy (C_out / groups, pixels) of each image and group."""
    (c_out, in_group, *kernel), groups = call.shape("w"), int(call["groups"])
    taps, k, pixels = math.prod(kernel), c_out // groups, math.prod(call.shape("dy")[2:])
    m = in_group * taps
    each = ((slab.images, 0, c_out * pixels), (slab.count, k * m, k * pixels))
    batch = tuple(row for row in each if row[0] > 1)
    base = (slab.first * k * m + first * taps, (slab.image * c_out + slab.first * k) * pixels, 0)
    return GemmProblem(count * taps, pixels, k, (1, m), (pixels, 1), (pixels, 1), batch, base=base)


def _build_col2im(call: Call, device: Device, params: Params) -> Program:
    c_in, in_group, plane = call.shape("dx")[1], call.shape("w")[1], math.prod(call.shape("dx")[2:])
    steps: list[Dispatch] = []
    most, taps, local = 0, math.prod(call.shape("w")[2:]), alone_by_default(device)
    for slab, first, count in in_parts(call):
        g, planes = _problem(call, slab, first, count), slab.images * slab.count * count
        at = (slab.image * c_in + slab.first * in_group + first) * plane
        steps += [
            product(params["tile"], g, ("w", "dy"), Epilogue(target="products"), device),
            blocks_added("products", "dx", at, planes * plane, taps, _geometry(call), device, local),
        ]
        most = max(most, planes)
    return Program(tuple(steps), scratch={"products": most * _plane_bytes(call)} if steps else {})


def _col2im_params(call: Call, device: Device) -> Legal:
    nothing = Slab(0, 0, 0, 0), 0, 0  # where there are no images
    return product_params(_problem(call, *next(in_parts(call), nothing)), device, element_of(call))


def _build_direct(call: Call, device: Device, params: Params) -> Program:
    total, groups = math.prod(call.shape("dx")), int(call["groups"])
    channels = {"c_in": call.shape("dx")[1], "c_out": call.shape("dy")[1], "groups": groups}
    step = Dispatch(
        DIRECT,
        {"dy": "dy", "weight": "w", "dx": "dx"},
        *over_invocations(total, params["local"], device),
        push={"total": total, **channels, **_geometry(call)},
        loop_iterations=_iterations(call, device),
    )
    return Program((step,))


def _iterations(call: Call, device: Device) -> int:
    """Of an invocation of the direct route: taps, and of those that reach an element the channels."""
    return math.prod(call.shape("w")[2:]) + terms(call)


WITHIN_SCRATCH = Requirement.of(
    f"the products of one channel of dx in {bytes_str(SCRATCH_BYTES)}",
    _plane_bytes,
    lambda nbytes: nbytes <= SCRATCH_BYTES,
    bytes_str,
)
_COL2IM_LOOPS = loop_iterations(lambda call, device: max(_iterations(call, device), call.shape("w")[0]))
# lavapipe, us, least:                                          col2im  direct_gather
#   4 to 16, to 8x14x14, 3x3x3 stride 1                         4536    6484
#   16 to 16, the same                                          4756    12692
#   16 to 16 in 16 groups, the same                             4443    4698
#   64 to 32, 4x7x7 to 8x14x14, 3x3x3 stride 2                  7990    23155
ROUTES: tuple[Route, ...] = (
    Route(
        "col2im",
        _build_col2im,
        (COL2IM_SHADER, *SHADERS),
        why="every element of dy meets every tap: a plain matrix product with w as it lies, and a cheap sum of what "
        "reaches each element of dx; channels in turn keep the products within 16 MiB",
        must=(FLOATS, INT32, WITHIN_SCRATCH, _COL2IM_LOOPS),
        params=_col2im_params,
    ),
    Route(
        "direct_gather",
        _build_direct,
        (DIRECT,),
        why="one element of dx per invocation, which sums exactly the taps that reach it: takes every call of floats",
        must=(FLOATS, INT32, loop_iterations(_iterations)),
        params=local_params,
    ),
)

_CASES = (
    "dy=2x5x3x4x6,w=5x3x2x3x3,x_shape=4x6x8",
    "dy=2x6x3x3x3,w=6x5x3x3x2,x_shape=5x5x7,g=2,s=2,p=1x1x0",
    "dy=1x17x3x4x5,w=17x19x3x3x3,x_shape=3x4x5,p=1",
    "dy=2x32x3x2x3,w=32x3x3x1x2,x_shape=9x7x8,s=2x4x1,d=2x1x5,p=0x0x0x1x1x0",
    "dy=3x7x1x6x7,w=7x5x1x1x1,x_shape=2x11x13,s=2",
    "dy=1x20x3x4x4,w=20x1x3x3x3,x_shape=9x9x9,g=20,s=2,p=-1x1x-2x0x-1x2",
    "dy=0x4x2x2x2,w=4x3x1x1x1,x_shape=2x2x2",
)

CONV3D_BACKWARD_DATA = Op(
    _NAME,
    operands=(Operand("dy"), Operand("w")),
    outputs=("dx",),
    resolve=_resolve,
    reference=_reference,
    attrs=(
        Attr("x_shape", "x_shape", tuple[int, ...]),
        Attr("stride", "s", tuple[int, ...], (1,) * _RANK),
        Attr("padding", "p", tuple[int, ...], (0,) * (2 * _RANK)),
        Attr("dilation", "d", tuple[int, ...], (1,) * _RANK),
        Attr("groups", "g", int, 1),
    ),
    routes=with_by_images(ROUTES, ("dy", "dx"), ("x_shape",)),
    terms=terms,
    magnitude=_magnitude,
    flops=lambda call: 2 * math.prod(call.shape("dy")) * math.prod(call.shape("w")[1:]),
    cases=tuple(f"{_NAME}:{case}" for case in _CASES),
    doc="The gradient of a 3-D convolution by its input, of shape x_shape, with groups and dilation.",
)
