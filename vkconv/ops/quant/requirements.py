"""What routes of integer arithmetic share: requirements, and tiles of matrix products of bytes in shared memory."""

import dataclasses
from collections.abc import Callable, Mapping

from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.ops.core.base import first, most_invocations
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
    """Outputs of a workgroup, words of a k-tile, and rows of an invocation, which has four columns. The invocations are
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
    def constants(self) -> dict[str, int]:
        """Its specialization constants."""
        return {field.upper(): size for field, size in dataclasses.asdict(self).items()}


# By name: rows x columns x bytes of a k-tile, and the tile of an invocation where two have all of these.
TILES: Mapping[str, IntegerTile] = {
    "64x64x32": IntegerTile(64, 64, 8, 4),
    "128x64x32": IntegerTile(128, 64, 8, 8),
    "32x64x32": IntegerTile(32, 64, 8, 4),
    "64x32x32": IntegerTile(64, 32, 8, 4),
    "32x32x32": IntegerTile(32, 32, 8, 4),
    "64x64x64": IntegerTile(64, 64, 16, 4),
    "64x64x32_8x4": IntegerTile(64, 64, 8, 8),
}
# The first that makes enough workgroups, or the last.
_RULE, _ENOUGH = ("128x64x32", "64x64x32", "32x64x32", "32x32x32"), 256
_SMALLEST = TILES["32x32x32"]
FITS_SMALLEST = invocations(_SMALLEST.local), shared_bytes(_SMALLEST.shared_bytes)


def tiles_by_rule(rows: int, blocks: Callable[[IntegerTile], int], device: Device) -> tuple[str, ...]:
    """Names of the tiles that a device can hold, first the one for a product of so many rows: the first that makes
    enough ``blocks`` to keep the device busy."""
    shared = device.limit("maxComputeSharedMemorySize")
    fitting = [
        name for name, tile in TILES.items() if tile.local <= most_invocations(device) and tile.shared_bytes <= shared
    ]
    rule = [name for name in _RULE if name in fitting]
    wide = [name for name in rule if TILES[name].rows < 2 * rows] or rule[-1:]
    best = next((name for name in wide if blocks(TILES[name]) >= _ENOUGH), wide[-1])
    return first(best, fitting)


def tile_blocks(tile: IntegerTile, rows: int, columns: int) -> int:
    """Workgroups of a product."""
    return ceil_div(rows, tile.rows) * ceil_div(columns, tile.columns)
