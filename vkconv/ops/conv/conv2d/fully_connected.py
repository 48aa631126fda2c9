"""conv2d whose kernel covers the whole plane, such as a 1x1 of planes of one pixel: a fully connected layer, the
matrix product of images by output channels. Products of few images, squeeze-and-excite's among them, are skinny."""

import dataclasses
import math
from collections.abc import Mapping

from vkconv.call import Call
from vkconv.core import shape_str
from vkconv.device import Device
from vkconv.ops.conv.common import GROUPS_1
from vkconv.ops.core.requirements import FLOATS, loop_iterations
from vkconv.ops.kernels.epilogue import Epilogue, finishing
from vkconv.ops.kernels.gemm import GemmProblem
from vkconv.ops.kernels.skinny import SKINNY, most_iterations, skinny_params, skinny_product
from vkconv.policy import Policy
from vkconv.program import Program
from vkconv.requirement import Requirement
from vkconv.route import Params, Route


@dataclasses.dataclass(frozen=True, slots=True)
class Few:
    """Images or output channels, whichever are fewer, up to which calls of at least ``least`` multiply-adds are taken:
    ``rows``, and ``of_small`` where there are at most ``small`` multiply-adds."""

    least: int
    rows: int
    of_small: int
    small: int


_FEW = Policy("conv2d.fully_connected", Few)


def _depth(call: Call) -> int:
    return math.prod(call.shape("w")[1:])


def _problem(call: Call) -> GemmProblem:
    """x (images, K) by w (output channels, K) transposed: both lie along K."""
    images, c_out, k = call.shape("x")[0], call.shape("w")[0], _depth(call)
    return GemmProblem(images, c_out, k, (k, 1), (1, k), (c_out, 1))


def _params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    return skinny_params(_problem(call), device)


def _build(call: Call, device: Device, params: Params) -> Program:
    g, e = _problem(call), Epilogue.of(call, device)
    swap = bool(params["swap"])
    g, operands = (g.transposed(), ("w", "x")) if swap else (g, ("x", "w"))
    return e.complete(Program((skinny_product(g, operands, e, params, device),)), call.shape("y"), device)


WHOLE_PLANE = Requirement(
    "a kernel as large as the planes, no padding",
    lambda call, device: call.shape("w")[2:] == call.shape("x")[2:] and not any(call["padding"]),
    lambda call, device: (
        f"{shape_str(call.shape('w')[2:])} over {shape_str(call.shape('x')[2:])}, padding {shape_str(call['padding'])}"
    ),
)


def _products(call: Call) -> int:
    g = _problem(call)
    return g.m * g.n * g.k


def _most(call: Call, device: Device) -> int:
    """Images or output channels, whichever are fewer, that are few for so many products."""
    few = _FEW.of(device)
    return few.of_small if _products(call) <= few.small else few.rows


def _is_few(call: Call, device: Device) -> bool:
    return _products(call) >= _FEW.of(device).least and _problem(call).least_side <= _most(call, device)


def _actual(call: Call, device: Device) -> str:
    least, most = _FEW.of(device).least, _most(call, device)
    return f"{_problem(call)}, {_products(call)} products, of {least} or more up to {most} ({_FEW.said(device)})"


FEW = Requirement("as few images or output channels, and as many products, as such devices take", _is_few, _actual)

FULLY_CONNECTED = Route(
    "fully_connected",
    _build,
    finishing(SKINNY),
    why="a kernel over the whole plane makes one pixel: a matrix product of images by output channels, whose weights "
    "are read as they lie, once for every four images, by all lanes of many workgroups; a tile of pixels would be "
    "nearly empty",
    must=(FLOATS, GROUPS_1, WHOLE_PLANE, loop_iterations(lambda call, device: most_iterations(_depth(call)))),
    prefer=(FEW,),
    params=_params,
)
