"""A workgroup's tile of a matrix product: slices of both operands in shared memory, sums in registers."""

import dataclasses

from vkconv.device import Device
from vkconv.ops.core.base import most_invocations


@dataclasses.dataclass(frozen=True, slots=True)
class GemmTile:
    """Rows x columns of a workgroup, the depth of a slice, rows x columns of an invocation, and slices that shared
    memory holds at a time (1 or 2). Of a convolution they are output channels and pixels."""

    rows: int
    columns: int
    depth: int
    lane_rows: int
    lane_columns: int
    buffers: int = 1

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
