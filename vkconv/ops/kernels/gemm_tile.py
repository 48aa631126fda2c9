"""A workgroup's tile of a matrix product: k-tiles of both operands in shared memory, sums in registers."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from vkconv.core import align
from vkconv.cost import scaled, spills
from vkconv.device import Device, target_of
from vkconv.kernel import Kernel
from vkconv.ops.core.base import holds_workgroup
from vkconv.ops.kernels import compiled
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
# By kernel, the tiles whose launches push their numbers also where those of others are constants of their pipelines.
_PUSHING = Policy("kernels.pushing_tiles", dict[str, tuple[str, ...]])


class Named(Protocol):
    """A tile whose sizes are its name: ``short`` where that is enough, else ``name``."""

    @property
    def short(self) -> str: ...

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)
G = TypeVar("G", bound="GemmTile")


def by_name(*tiles: T) -> dict[str, T]:
    """Tiles by their names; one whose short name another before it has goes by its whole one."""
    named: dict[str, T] = {}
    for tile in tiles:
        named[tile.name if tile.short in named else tile.short] = tile
    return named


@dataclasses.dataclass(frozen=True, slots=True)
class GemmTile:
    """Rows x columns of a workgroup, the depth of a k-tile, rows x columns of an invocation, k-tiles that shared memory
    holds at a time (1 or 2), whether a k-tile is multiplied by unrolled code or in a loop, which needs the fewest
    registers, and teams of invocations that divide its depth (sliced-K). Of a convolution rows and columns are output
    channels and pixels."""

    rows: int
    columns: int
    depth: int
    lane_rows: int
    lane_columns: int
    buffers: int = 1
    unroll: bool = True
    teams: int = 1

    @property
    def short(self) -> str:
        """Rows x columns x k-tile, with the buffers where there are two, the teams where there are several, and
        whether it is multiplied in a loop: ``64x32x16``, ``64x32x16b2``, ``32x32x64t4``, ``64x32x16loop``."""
        several = "".join(f"{name}{count}" for name, count in (("b", self.buffers), ("t", self.teams)) if count > 1)
        return f"{self.rows}x{self.columns}x{self.depth}{several}{'' if self.unroll else 'loop'}"

    @property
    def name(self) -> str:
        """The tile of an invocation too: ``64x64x16_4x4``."""
        return f"{self.short}_{self.lane_rows}x{self.lane_columns}"

    @property
    def sizes(self) -> tuple[int, ...]:
        """The values of `constants`, in order, but for teams."""
        lane = self.lane_rows, self.lane_columns
        return self.rows, self.columns, self.depth, *lane, self.buffers, self.unroll

    @property
    def constants(self) -> dict[str, int]:
        """The specialization constants of shaders/include/gemm_tile.glsl."""
        common = dict(zip(("BM", "BN", "BK", "TM", "TN", "BUFFERS", "UNROLL"), self.sizes, strict=True))
        return {**common, "TEAMS": self.teams} if self.teams > 1 else common

    @property
    def local(self) -> int:
        return self.rows // self.lane_rows * (self.columns // self.lane_columns) * self.teams

    @property
    def products(self) -> int:
        """Multiply-adds of a k-tile."""
        return self.rows * self.columns * self.depth

    @property
    def registers(self) -> int:
        """An estimate of the 32-bit registers of an invocation: sums, operands, loads of a k-tile and what addresses
        take. Within a fifth of what the compilers of GA102 and Navi 31 make of f32 (vkconv/device/compiled)."""
        loads = self.buffers * self.depth * (self.rows + self.columns) // self.local
        return self.lane_rows * self.lane_columns + self.lane_rows + self.lane_columns + 3 * loads // 2 + 18

    @property
    def shared_bytes(self) -> int:
        return 4 * self.buffers * self.depth * (self.rows + self.columns)

    def loop_iterations(self, k_tiles: int) -> int:
        """Of an invocation that multiplies so many k-tiles."""
        return k_tiles * (1 if self.unroll else 1 + self.depth // self.teams)

    def fits(self, device: Device) -> bool:
        """Whether a workgroup of the device can hold it."""
        return holds_workgroup(device, self.local, self.shared_bytes)


def pushes(tile: GemmTile, kernel: Kernel, device: Device) -> bool:
    """Whether a launch of the tile pushes its numbers, whatever others do (`Dispatch.pushes`)."""
    return tile.short in _PUSHING.of(device).get(kernel.name, ())


@dataclasses.dataclass(frozen=True, slots=True)
class Compilers:
    """For which kernel, elements of which type ("": any), device and form of the kernel a rule takes a tile."""

    kernel: Kernel
    device: Device
    element: str = ""
    form: str = ""

    def keep(self, tile: GemmTile) -> bool:
        """Whether a tile stays in registers: as the GPU's compiler had it, else by estimate."""
        fits = compiled.fits(self.kernel, tile.constants, self.element, self.device, self.form)
        return not spills(tile.registers, self.device) if fits is None else fits

    def suit(self, tile: GemmTile) -> bool:
        """Whether a rule may take a tile: it stays in registers, of which it has no more than there are, and enough
        invocations run."""
        target = target_of(self.device)
        registers = min(tile.registers, target.value("registers_per_lane"))
        enough = registers * ENOUGH.of(self.device).least_occupancy <= target.value("full_occupancy_registers")
        return enough and self.keep(tile)


def instead_of(tile: GemmTile, tiles: Mapping[str, G]) -> dict[str, G]:
    """The tiles of as many rows and columns that need fewer registers: of smaller invocations, with shorter k-tiles or
    fewer buffers, with k-tiles in a loop; in their order."""

    def needs(of: GemmTile) -> tuple[int, ...]:
        return of.lane_rows, of.lane_columns, of.depth, of.buffers, of.unroll

    return {
        name: other
        for name, other in tiles.items()
        if (other.rows, other.columns) == (tile.rows, tile.columns)
        and needs(other) != needs(tile)
        and all(a <= b for a, b in zip(needs(other), needs(tile), strict=True))
    }


def tile_by_rule(
    rule: Iterable[str],
    tiles: Mapping[str, GemmTile],
    rows: int,
    blocks: Callable[[str], int],
    per_unit: float,
    compilers: Compilers,
) -> str:
    """The first of a rule's tiles, of a product of so many rows, that makes so many ``blocks`` for each compute unit,
    else the last. For one that would spill on the device or leave it too little occupancy, the first `instead_of` it
    stands that does not, of the ``tiles`` that the device can hold; where there is none it is passed over, and so are
    tiles that pad the rows for more than it is worth where others do better."""
    device = compilers.device
    several = [{name: tiles[name], **instead_of(tiles[name], tiles)} for name in rule if name in tiles]
    fit = dict[str, GemmTile]()
    for same in several:
        fit |= next(({name: tile} for name, tile in same.items() if compilers.suit(tile)), {})
    if not fit:
        every = {name: tile for same in several for name, tile in same.items()}
        kept = {name: tile for name, tile in every.items() if compilers.keep(tile)} or every
        least = min(kept, key=lambda name: kept[name].registers)
        fit = {least: kept[least]}
    padded = {name: align(rows, tile.rows) for name, tile in fit.items()}
    most = max(ENOUGH.of(device).waste * rows, min(padded.values()))
    suiting = [name for name, size in padded.items() if size <= most]
    return next((name for name in suiting if blocks(name) >= scaled(per_unit, device)), suiting[-1])
