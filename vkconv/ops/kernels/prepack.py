"""Register tiles, as conv2d and matmul share them: which size, and rows packed so that a tile lies side by side."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import align, ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.base import first, over_invocations
from vkconv.ops.core.workgroups import alone_by_default
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.requirement import Requirement

PACK_TILES = Shader(shaders.kernels.PACK_TILES)
_NONE: Mapping[str, int] = {}
_PUSH = ("groups", "rows", "outer", "inner", "inner_padded", "row_stride", "outer_stride", "inner_stride")

# Columns of inputs that lie in registers, the loop over them unrolled: past this they would spill, and compile for
# seconds.
MOST_SPAN = 40


def short_span(what: str, columns: Callable[[Call], int]) -> Requirement:
    """At most `MOST_SPAN` input columns for ``what`` an invocation makes at the least."""
    return Requirement.of(
        f"{what} at most {MOST_SPAN} input columns", columns, lambda count: count <= MOST_SPAN, "{} columns".format
    )


TILE_OVERHEAD = Policy("kernels.tile_overhead", int)


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a tile along one side: those that the rule picks from, best first, and those that only tuning tries."""

    rule: tuple[int, ...]
    more: tuple[int, ...] = ()

    def values(self, extent: int, device: Device) -> tuple[int, ...]:
        """All of them, the rule's pick for ``extent`` on a device first."""
        best = best_tile(extent, self.rule, TILE_OVERHEAD.of(device))
        return first(best, (*self.rule, *self.more))


@dataclasses.dataclass(frozen=True, slots=True)
class InvocationTiles:
    """What a kernel in registers may take: lanes of a workgroup, the default first, and the tiles of an invocation,
    rows (output channels, where it is a convolution) by columns (or pixels)."""

    local: tuple[int, ...]
    rows: Sizes
    columns: Sizes


@dataclasses.dataclass(frozen=True, slots=True)
class Packing:
    """A (groups, rows, outer, inner) array of f32 with any strides in elements, packed as
    [groups][ceil(rows / tile)][outer][inner up to ``inner_step``][tile], with 0 beyond both ends. Without a
    ``group_stride`` groups lie one after the other."""

    rows: int
    inner: int
    tile: int
    row_stride: int
    inner_stride: int
    outer: int = 1
    outer_stride: int = 0
    inner_step: int = 1
    groups: int = 1
    group_stride: int | None = None

    @property
    def inner_padded(self) -> int:
        return align(self.inner, self.inner_step)

    @property
    def size(self) -> int:
        """Elements of the packed array."""
        return self.groups * align(self.rows, self.tile) * self.outer * self.inner_padded

    def dispatch(self, source: str, target: str, device: Device) -> Dispatch:
        """The launch that packs ``source`` into ``target``, which has `size` elements."""
        push = {name: getattr(self, name) for name in _PUSH}
        push["group_stride"] = self.rows * self.row_stride if self.group_stride is None else self.group_stride
        buffers, grid = {"src": source, "dst": target}, over_invocations(self.size, alone_by_default(device), device)
        return Dispatch(PACK_TILES, buffers, *grid, push, {"TILE": self.tile})

    def program(self, device: Device, *steps: Dispatch, scratch: Mapping[str, int] = _NONE, half: str = "") -> Program:
        """The program of launches that read the weights ``w`` as ``packed``, which have the element type of the call,
        as the scratch ``half`` has."""
        elements = frozenset({"packed", half} if half else {"packed"})
        return Program(steps, (self.dispatch("w", "packed", device),), {"packed": 4 * self.size}, scratch, elements)


def best_tile(extent: int, sizes: Sequence[int], overhead: int) -> int:
    """The size that covers ``extent`` at least cost: a tile costs its size and, for what is not per element, as much as
    so many elements.

    The first of equals wins. By an overhead of 4, 24 of (16, 12, 8) takes 12, 60 takes 16, 1 of (8, 4, 1) takes 1.
    """
    return min(sizes, key=lambda size: ceil_div(extent, size) * (size + overhead))
