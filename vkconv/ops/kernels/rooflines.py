"""Two kernels that belong to no op: they show what a device can do at all, the rooflines that rows are held against.

The names of the buffers are x and y; sizes are those the caller asks for, and must be multiples of `COPY_STEP_BYTES`.
"""

from vkconv import shaders
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.base import over_invocations
from vkconv.program import Dispatch

COPY = Shader(shaders.kernels.FLOOR_COPY)
FMA = Shader(shaders.kernels.FLOOR_FMA)
SHADERS = (COPY, FMA)

_LOCAL = 128
_VECTOR_BYTES = 16
COPY_ITEMS = (1, 4, 8)
COPY_STEP_BYTES = _VECTOR_BYTES * max(COPY_ITEMS)
# Multiply-adds of one iteration in the shader: 4 rounds over 8 chains, 2 FLOP each.
_FLOPS_PER_ITERATION = 4 * 8 * 2


def copy(nbytes: int, items: int, device: Device) -> Dispatch:
    """y = x over ``nbytes``, each invocation ``items`` vectors of four floats."""
    chunk = nbytes // _VECTOR_BYTES // items
    grid = over_invocations(chunk, _LOCAL, device)
    return Dispatch(COPY, {"x": "x", "y": "y"}, *grid, {"chunk": chunk}, {"ITEMS": items})


def multiply_add(invocations: int, iterations: int, device: Device) -> Dispatch:
    """y[i] = a number that takes ``fma_flops`` to compute, for that many invocations."""
    push = {"count": invocations, "iterations": iterations, "a": 0.999, "b": 0.001}
    grid = over_invocations(invocations, _LOCAL, device)
    return Dispatch(FMA, {"y": "y"}, *grid, push, loop_iterations=iterations)


def fma_flops(invocations: int, iterations: int) -> int:
    """Arithmetic of `multiply_add`, 2 FLOP per multiply-add."""
    return invocations * iterations * _FLOPS_PER_ITERATION
