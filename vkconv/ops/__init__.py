"""Every operator of vkconv, by name: an explicit sorted list, so that grep finds each one."""

from collections.abc import Mapping

from vkconv.ops.alias import FLATTEN, IDENTITY, RESHAPE, SQUEEZE, UNSQUEEZE
from vkconv.ops.base import Op
from vkconv.ops.binary import BINARY_OPS
from vkconv.ops.conv2d import CONV2D
from vkconv.ops.host import CONSTANT_OF_SHAPE, RANGE, SHAPE, SIZE
from vkconv.ops.layout import CONCAT, EXPAND, SLICE, SPLIT, TILE, TRANSPOSE
from vkconv.ops.unary import UNARY_OPS
from vkconv.shader import Shader

__all__ = ["OPS", "all_shaders"]

_ALL: tuple[Op, ...] = (
    CONCAT,
    CONSTANT_OF_SHAPE,
    CONV2D,
    EXPAND,
    FLATTEN,
    IDENTITY,
    RANGE,
    RESHAPE,
    SHAPE,
    SIZE,
    SLICE,
    SPLIT,
    SQUEEZE,
    TILE,
    TRANSPOSE,
    UNSQUEEZE,
    *BINARY_OPS,
    *UNARY_OPS,
)

OPS: Mapping[str, Op] = {op.name: op for op in sorted(_ALL, key=lambda op: op.name)}


def all_shaders() -> tuple[Shader, ...]:
    """Every shader variant that any route declares, each once, in order of their keys."""
    shaders = {shader.key: shader for op in OPS.values() for route in op.routes for shader in route.shaders}
    return tuple(shaders[key] for key in sorted(shaders))
