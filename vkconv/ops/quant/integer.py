"""What convolutions and matrix products of 8-bit integers share: tiles in shared memory, requirements, types."""

import dataclasses
from collections.abc import Callable, Mapping

from vkconv.call import Call
from vkconv.core import DType, ceil_div
from vkconv.device import Device
from vkconv.ops.core.base import first, most_invocations
from vkconv.ops.core.requirements import invocations, shared_bytes
from vkconv.ops.kernels.gemm_tile import by_name
from vkconv.route import Requirement

_EXTENSION, _FEATURE = "VK_KHR_shader_integer_dot_product", "shaderIntegerDotProduct"

DOT_PRODUCT = Requirement(
    f"integer dot products ({_EXTENSION})",
    lambda call, device: (
        device.has(_EXTENSION) and device.feature("VkPhysicalDeviceShaderIntegerDotProductFeatures", _FEATURE)
    ),
    lambda call, device: f"{'no ' * (not device.has(_EXTENSION))}{_EXTENSION}, {_FEATURE} off",
)


def is_signed(call: Call, name: str) -> bool:
    """Whether an operand or output is i8, not u8."""
    return call.specs[name].dtype is DType.I8


def result_of(call: Call) -> int:
    """The constant RESULT: i32 sums, u8 or i8."""
    return (DType.I32, DType.U8, DType.I8).index(call.outputs["y"].dtype)


@dataclasses.dataclass(frozen=True, slots=True)
class IntegerTile:
    """Rows x columns of a workgroup, words of a k-tile (four bytes each), and rows of an invocation, which has four
    columns. The invocations are a multiple of the columns, as the shaders load."""

    rows: int
    columns: int
    depth: int
    lane_rows: int

    @property
    def short(self) -> str:
        """Rows x columns x k-tile: ``64x64x8``."""
        return f"{self.rows}x{self.columns}x{self.depth}"

    @property
    def name(self) -> str:
        """The tile of an invocation too: ``64x64x8_8x4``."""
        return f"{self.short}_{self.lane_rows}x4"

    @property
    def local(self) -> int:
        return self.rows // self.lane_rows * (self.columns // 4)

    @property
    def shared_bytes(self) -> int:
        return 4 * self.depth * (self.rows + self.columns)

    @property
    def constants(self) -> Mapping[str, int]:
        """The specialization constants of a kernel by such tiles."""
        return {"ROWS": self.rows, "COLUMNS": self.columns, "DEPTH": self.depth, "TR": self.lane_rows}

    def blocks(self, rows: int, columns: int) -> int:
        """Workgroups of a product."""
        return ceil_div(rows, self.rows) * ceil_div(columns, self.columns)

    def loop_iterations(self, words: int) -> int:
        """Of an invocation whose sums are over so many words."""
        return ceil_div(words, self.depth) * (1 + 3 * self.depth)


# The parameter ``tile`` of the routes.
TILES: Mapping[str, IntegerTile] = by_name(
    IntegerTile(64, 64, 8, 4),
    IntegerTile(128, 64, 8, 8),
    IntegerTile(32, 64, 8, 4),
    IntegerTile(64, 32, 8, 4),
    IntegerTile(32, 32, 8, 4),
    IntegerTile(64, 64, 16, 4),
    IntegerTile(64, 64, 8, 8),
)
# The first that makes enough workgroups, or the last.
_RULE, _ENOUGH = ("128x64x8", "64x64x8", "32x64x8", "32x32x8"), 256
_SMALLEST = TILES["32x32x8"]
FITS_SMALLEST = invocations(_SMALLEST.local), shared_bytes(_SMALLEST.shared_bytes)


def tiles_by_rule(rows: int, blocks: Callable[[IntegerTile], int], device: Device) -> tuple[str, ...]:
    """The tiles that a device can hold. First the one for a product of so many rows: the largest that makes enough
    ``blocks`` to keep the device busy."""
    most, shared = most_invocations(device), device.limit("maxComputeSharedMemorySize")
    fitting = [name for name, tile in TILES.items() if tile.local <= most and tile.shared_bytes <= shared]
    rule = [name for name in _RULE if name in fitting]
    wide = [name for name in rule if TILES[name].rows < 2 * rows] or rule[-1:]
    return first(next((name for name in wide if blocks(TILES[name]) >= _ENOUGH), wide[-1]), fitting)
