"""A workgroup's tile of a matrix product: k-tiles of both operands in shared memory, sums in registers."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from vkconv.core import align
from vkconv.cost import scaled, spills
from vkconv.device import Device, target_of
from vkconv.ops.core.base import holds_workgroup
from vkconv.policy import Policy


@dataclasses.dataclass(frozen=True, slots=True)
class Enough:
    """For each compute unit: workgroups that keep it busy, of products in shared memory, of implicit GEMM (where very
    many make a large tile worth it) and of integer products; workgroups that split-K of implicit GEMM makes at most.
    What a tile may compute at most, padding included, in times of the product, and the share of whole occupancy that
    its registers have to leave. The fewest k-tiles of a slice, and those of a sum that pay for 1000 cycles of the
    launch that adds the slices up."""

    products: float
    implicit_gemm: float
    very_many: float
    integers: float
    waste: float
    least_occupancy: float
    split_k_most: float
    least_k_tiles: int
    launch_k_tiles: float


ENOUGH = Policy("kernels.enough", Enough)


class Named(Protocol):
    """A tile whose sizes are its name: ``short`` where that is enough, else ``name``."""

    @property
    def short(self) -> str: ...

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


class Blocked(Protocol):
    """A tile of a workgroup, whose invocations hold tiles of their own in registers."""

    @property
    def rows(self) -> int: ...

    @property
    def registers(self) -> int: ...


def leaves_occupancy(registers: int, device: Device) -> bool:
    """Whether a rule may take a tile whose invocations need so many registers: none spills, and enough of them run."""
    whole = target_of(device).value("full_occupancy_registers")
    return not spills(registers, device) and registers * ENOUGH.of(device).least_occupancy <= whole


def tile_by_rule(
    rule: Mapping[str, Blocked], rows: int, blocks: Callable[[str], int], per_unit: float, device: Device
) -> str:
    """The first tile, of a product of so many rows, that makes so many ``blocks`` for each compute unit, else the last.
    Tiles that would spill on the device, leave it too little occupancy, or pad the rows for more than it is worth, are
    passed over where others do better."""
    fit = {name: tile for name, tile in rule.items() if leaves_occupancy(tile.registers, device)}
    least = min(rule, key=lambda name: rule[name].registers)
    padded = {name: align(rows, tile.rows) for name, tile in (fit or {least: rule[least]}).items()}
    most = max(ENOUGH.of(device).waste * rows, min(padded.values()))
    names = [name for name, size in padded.items() if size <= most]
    return next((name for name in names if blocks(name) >= scaled(per_unit, device)), names[-1])


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
    def registers(self) -> int:
        """An estimate of the 32-bit registers of an invocation: sums, operands, loads of a k-tile and what addresses
        take. Within a fifth of what the compilers of GA102 and Navi 31 make of f32 (vkconv/device/compiled)."""
        loads = self.buffers * self.depth * (self.rows + self.columns) // self.local
        return self.lane_rows * self.lane_columns + self.lane_rows + self.lane_columns + 3 * loads // 2 + 18

    @property
    def shared_bytes(self) -> int:
        return 4 * self.buffers * self.depth * (self.rows + self.columns)

    def fits(self, device: Device) -> bool:
        """Whether a workgroup of the device can hold it."""
        return holds_workgroup(device, self.local, self.shared_bytes)
