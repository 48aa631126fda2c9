"""A workgroup's tile of a matrix product: k-tiles of both operands in shared memory, sums in registers."""

import dataclasses
from typing import Protocol, TypeVar

from vkconv.device import Device
from vkconv.ops.core.base import most_invocations


class Named(Protocol):
    """A tile whose sizes are its name: ``short`` where that is enough, else ``name``."""

    @property
    def short(self) -> str: ...

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


def by_name(*tiles: T) -> dict[str, T]:
    """Tiles by their names; one whose short name another before it has goes by its whole one."""
    named: dict[str, T] = {}
    for tile in tiles:
        named[tile.name if tile.short in named else tile.short] = tile
    return named


@dataclasses.dataclass(frozen=True, slots=True)
class GemmTile:
    """Rows x columns of a workgroup, the depth of a k-tile, rows x columns of an invocation, and k-tiles that shared
    memory holds at a time (1 or 2). Of a convolution they are output channels and pixels."""

    rows: int
    columns: int
    depth: int
    lane_rows: int
    lane_columns: int
    buffers: int = 1

    @property
    def short(self) -> str:
        """Rows x columns x k-tile, with the buffers where there are two: ``64x32x16``, ``64x32x16b2``."""
        return f"{self.rows}x{self.columns}x{self.depth}{f'b{self.buffers}' if self.buffers > 1 else ''}"

    @property
    def name(self) -> str:
        """The tile of an invocation too: ``64x64x16_4x4``."""
        return f"{self.short}_{self.lane_rows}x{self.lane_columns}"

    @property
    def sizes(self) -> tuple[int, ...]:
        """The values of `constants`, in order."""
        return dataclasses.astuple(self)

    @property
    def constants(self) -> dict[str, int]:
        """The specialization constants of shaders/include/gemm_tile.glsl."""
        return dict(zip(("BM", "BN", "BK", "TM", "TN", "BUFFERS"), self.sizes, strict=True))

    @property
    def local(self) -> int:
        return self.rows // self.lane_rows * (self.columns // self.lane_columns)

    @property
    def shared_bytes(self) -> int:
        return 4 * self.buffers * self.depth * (self.rows + self.columns)

    def fits(self, device: Device) -> bool:
        """Whether a workgroup of the device can hold it."""
        shared = device.limit("maxComputeSharedMemorySize")
        return self.local <= most_invocations(device) and self.shared_bytes <= shared
