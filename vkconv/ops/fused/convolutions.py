"""Convolutions in a row as one op: by definition, what their result may be off by, and run in turn."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vkconv.call import HALVES, Call
from vkconv.core import GraphError, bytes_str, did_you_mean
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops.conv.by_images import BY_IMAGES
from vkconv.ops.conv.common import GROUPED, GROUPS_1, LARGER_THAN_1X1, ONE_CHANNEL_PER_GROUP
from vkconv.ops.conv.conv2d.op import CONV2D
from vkconv.ops.conv.conv2d.winograd import KERNEL as WINOGRAD_KERNEL
from vkconv.ops.core.activation import check_numbers
from vkconv.ops.core.base import F64, Arrays, Attrs, Outputs
from vkconv.ops.core.requirements import FLOATS
from vkconv.ops.core.tolerance import addends, largest, of_error, rounding_of_storing, rounding_of_sum
from vkconv.ops.fused.in_turn import UNFUSED
from vkconv.ops.kernels.epilogue import NO_EPILOGUE, finished
from vkconv.program import Composite, Inner
from vkconv.requirement import Requirement
from vkconv.route import Params, Route, Sub

# Activations between two of them: a number that is off by little stays so.
ACTIVATIONS = (
    *("none", "relu", "relu6", "clip", "hard_swish", "hard_sigmoid", "sigmoid", "silu"),
    *("leaky_relu", "elu", "gelu", "gelu_tanh", "tanh"),
)


def check_activation(act: str, attrs: Attrs, a: str, b: str) -> None:
    """GraphError unless there may be such an activation, with the parameters named ``a`` and ``b``, between two."""
    if act not in ACTIVATIONS:
        close = did_you_mean(act, ACTIVATIONS)
        raise GraphError(
            f"no activation {act!r} comes between two convolutions{close}; one of {', '.join(ACTIVATIONS)}"
        )
    check_numbers(act, attrs[a], attrs[b])


@dataclasses.dataclass(frozen=True)
class Link:
    """One of the convolutions: its call, under the name of its place in a route, and for each operand of it where that
    is: an operand of the whole op, or the name of the link before it. It is ``depthwise``, or a 1x1 convolution of all
    channels."""

    name: str
    call: Call
    reads: Mapping[str, str]
    depthwise: bool = False


Links = Callable[[Call], Sequence[Link]]

# Conditions that no depthwise convolution meets, and no 1x1 convolution of all channels.
_NO_DEPTHWISE = (GROUPS_1,)
_NO_POINTWISE = (GROUPED, WINOGRAD_KERNEL, LARGER_THAN_1X1, ONE_CHANNEL_PER_GROUP)
_ROUTES = tuple(route for route in CONV2D.routes if route.rounds_as_f32 and route.name != BY_IMAGES)


def _without(needs: Sequence[Requirement]) -> tuple[Route, ...]:
    return tuple(route for route in _ROUTES if not any(need in needs for need in route.must))


DEPTHWISE_ROUTES, POINTWISE_ROUTES = _without(_NO_DEPTHWISE), _without(_NO_POINTWISE)


def routes_of(link: Link) -> tuple[Route, ...]:
    """The routes that a link may take: a depthwise convolution, or a 1x1 one of all channels."""
    return DEPTHWISE_ROUTES if link.depthwise else POINTWISE_ROUTES


def _operands(link: Link, arrays: Arrays, x: F64) -> dict[str, F64 | None]:
    found = {name: arrays.get(operand) for name, operand in link.reads.items() if name != "x"}
    wide = {name: None if array is None else np.asarray(array, np.float64) for name, array in found.items()}
    return {"x": x, **wide}


def _bare(call: Call) -> Call:
    """The sums of a convolution without what ends them."""
    return dataclasses.replace(call, attrs={**call.attrs, **NO_EPILOGUE})


def _off_by(call: Call, operands: Mapping[str, F64 | None], off: F64) -> F64:
    """How far the result of a convolution in f32 may be off whose input is off by ``off``: its own rounding, and what
    it adds up of that, as far as the activation lets them through."""
    bare = _bare(call)
    inputs = {**operands, "slope": None}
    sums = np.asarray(CONV2D.reference(bare, inputs)[0], np.float64)
    carried = addends(CONV2D.reference, bare, {"x": off, "w": operands["w"]})
    error = carried + rounding_of_sum(addends(CONV2D.reference, bare, inputs), CONV2D.terms(call))
    slope = {"slope": operands.get("slope")}
    with np.errstate(all="ignore"):
        stays = finished(call, slope, sums)
        moved = (np.abs(finished(call, slope, sums + e) - stays) for e in (error, -error))
        return np.asarray(np.nan_to_num(np.fmax(*moved), nan=0.0, posinf=0.0))


@dataclasses.dataclass(frozen=True)
class InRow:
    """An op of convolutions in a row, which ``links(call)`` tells in their order."""

    links: Links

    def reference(self, call: Call, arrays: Arrays, start: F64 | None = None) -> Outputs:
        """`Op.reference`; of an op that begins with ``start``, not with x."""
        value = np.asarray(arrays["x"], np.float64) if start is None else start
        for link in self.links(call):
            value = np.asarray(CONV2D.reference(link.call, _operands(link, arrays, value))[0], np.float64)
        return [value]

    def terms(self, call: Call) -> int:
        """Products and addends of an output: those of one sum of each."""
        return sum(CONV2D.terms(link.call) for link in self.links(call))

    def flops(self, call: Call) -> int:
        """Those of all of them."""
        return sum(CONV2D.flops(link.call) for link in self.links(call))

    def magnitude(self, call: Call, arrays: Arrays, result: F64) -> F64:
        """What the rounding of an output is relative to: the largest result, or what the errors of all convolutions
        come to behind the last one. In calls of 16-bit floats each result may be stored as such on the way."""
        x = np.asarray(arrays["x"], np.float64)
        return self.magnitude_from(call, arrays, result, x, np.zeros(x.shape))

    def magnitude_from(self, call: Call, arrays: Arrays, result: F64, value: F64, off: F64) -> F64:
        """The same for an op that begins with a ``value`` that is ``off`` by so much."""
        links, half = self.links(call), call.outputs["y"].dtype in HALVES
        with np.errstate(all="ignore"):
            for link in links:
                operands = _operands(link, arrays, value)
                off = _off_by(link.call, operands, off)
                value = np.asarray(CONV2D.reference(link.call, operands)[0], np.float64)
                if half and link is not links[-1]:
                    off = off + rounding_of_storing(value, call.outputs["y"].dtype)
            most = largest(result) + abs(float(links[-1].call["out_shift"]))
        return np.asarray(np.fmax(most, of_error(call, result, off, self.terms(call))))

    def middle(self, call: Call) -> tuple[TensorSpec, ...]:
        """The tensors between two of them."""
        return tuple(link.call.outputs["y"] for link in self.links(call)[:-1])

    def unfused(self, why: str) -> Route:
        """The route that runs each by its own best route, into scratch but for the last."""

        def inner(call: Call, device: Device, params: Params) -> Mapping[str, Sub]:
            return {link.name: Sub(link.call, routes_of(link)) for link in self.links(call)}

        def program(call: Call, device: Device, params: Params) -> Composite:
            links = self.links(call)
            scratch = {f"of_{link.name}": link for link in links[:-1]}
            placed = {link.name: name for name, link in scratch.items()}

            def step(link: Link) -> Inner:
                reads = {name: placed.get(operand, operand) for name, operand in link.reads.items()}
                return Inner(link.name, {**reads, "y": placed.get(link.name, "y")})

            nbytes = {name: 4 * math.prod(link.call.shape("y")) for name, link in scratch.items()}
            return Composite(tuple(map(step, links)), scratch=nbytes, elements=frozenset(nbytes))

        def note(call: Call, device: Device, params: Params) -> str:
            return f"{bytes_str(sum(spec.nbytes for spec in self.middle(call)))} of scratch between them"

        shaders = tuple(dict.fromkeys(s for route in (*DEPTHWISE_ROUTES, *POINTWISE_ROUTES) for s in route.shaders))
        return Route(UNFUSED, program, shaders, why, must=(FLOATS,), inner=inner, note=note)
