"""What routes of integer arithmetic share: needs, and tiles of matrix products of bytes in shared memory."""

import dataclasses
from collections.abc import Callable

from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.ops.core.base import most_invocations
from vkconv.ops.core.requirements import invocations, shared_bytes
from vkconv.route import Requirement

_EXTENSION, _FEATURE = "VK_KHR_shader_integer_dot_product", "shaderIntegerDotProduct"


DOT_PRODUCT = Requirement(
    f"integer dot products ({_EXTENSION})",
    lambda call, device: (
        device.has(_EXTENSION) and device.feature("VkPhysicalDeviceShaderIntegerDotProductFeatures", _FEATURE)
    ),
    lambda call, device: f"{'no ' * (not device.has(_EXTENSION))}{_EXTENSION}, {_FEATURE} off",
)


@dataclasses.dataclass(frozen=True, slots=True)
class IntegerTile:
    """Outputs of a workgroup, words of a slice, and rows of an invocation, which has four columns. The invocations are
    a multiple of the columns, as the shaders load."""

    rows: int
    columns: int
    depth: int
    tr: int

    @property
    def local(self) -> int:
        return self.rows // self.tr * (self.columns // 4)

    @property
    def shared_bytes(self) -> int:
        return 4 * self.depth * (self.rows + self.columns)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return self.rows, self.columns, self.depth, self.tr


# By number: the parameter ``tile`` of the routes.
TILES: tuple[IntegerTile, ...] = (
    IntegerTile(64, 64, 8, 4),
    IntegerTile(128, 64, 8, 8),
    IntegerTile(32, 64, 8, 4),
    IntegerTile(64, 32, 8, 4),
    IntegerTile(32, 32, 8, 4),
    IntegerTile(64, 64, 16, 4),
    IntegerTile(64, 64, 8, 8),
)
# The first that makes enough workgroups, or the last.
_RULE, _ENOUGH = (1, 0, 2, 4), 256
_SMALLEST = TILES[4]
FITS_SMALLEST = invocations(_SMALLEST.local), shared_bytes(_SMALLEST.shared_bytes)


def tiles_by_rule(rows: int, blocks: Callable[[IntegerTile], int], device: Device) -> tuple[int, ...]:
    """Numbers of the tiles that a device can hold, first the one for a product of so many rows: the first that makes
    enough ``blocks`` to keep the device busy."""
    shared = device.limit("maxComputeSharedMemorySize")
    fitting = [
        i for i, tile in enumerate(TILES) if tile.local <= most_invocations(device) and tile.shared_bytes <= shared
    ]
    rule = [i for i in _RULE if i in fitting]
    wide = [i for i in rule if TILES[i].rows < 2 * rows] or rule[-1:]
    best = next((i for i in wide if blocks(TILES[i]) >= _ENOUGH), wide[-1])
    return (best, *(i for i in fitting if i != best))


def tile_blocks(tile: IntegerTile, rows: int, columns: int) -> int:
    """Workgroups of a product."""
    return ceil_div(rows, tile.rows) * ceil_div(columns, tile.columns)
