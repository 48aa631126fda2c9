"""A matrix product as one step of another op's program: the kernels of matmul with tiles to choose from, and how
work is cut so that its scratch stays within a budget."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from vkconv import shaders
from vkconv.device import Device
from vkconv.ops.core.base import first, holds_workgroup
from vkconv.ops.core.requirements import shuffles, unrolls
from vkconv.ops.kernels import compiled, gemm
from vkconv.ops.kernels.epilogue import Epilogue
from vkconv.ops.kernels.gemm_tile import ENOUGH, GemmTile, tile_by_rule
from vkconv.ops.kernels.prepack import TILE_OVERHEAD
from vkconv.ops.kernels.shared_costs import shared_us
from vkconv.policy import Policy
from vkconv.program import Dispatch
from vkconv.route import Params

SHADERS = (gemm.REGISTER, gemm.SHARED, gemm.SUBGROUP)
# Scratch that a route may take, as ExecuTorch caps that of its im2col (kIm2colScratchBudgetBytes; executorch#20653).
SCRATCH_BYTES = 16 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class ProductTile:
    """Rows x columns of an invocation of ``local``; by the kernel in shared memory with its tile ``shared``; with
    ``subgroup`` lanes share what they load of the rows."""

    rows: int
    columns: int
    local: int
    shared: GemmTile | None = None
    subgroup: bool = False

    @property
    def sizes(self) -> Params:
        """The parameters that matmul's kernels in registers take."""
        return {"rows": self.rows, "columns": self.columns, "local": self.local}

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of a workgroup."""
        return (self.shared.rows, self.shared.columns) if self.shared else (self.rows, self.columns * self.local)

    def fits(self, device: Device) -> bool:
        """Whether a workgroup of the device can hold it."""
        shares = not self.subgroup or (shuffles(device) and self.local % device.subgroup_size == 0)
        return shares and holds_workgroup(device, self.local, gemm.padded_bytes(self.shared) if self.shared else 0)


def _in_shared(rows: int, columns: int, depth: int, lane_rows: int, lane_columns: int, **more: bool) -> ProductTile:
    tile = GemmTile(rows, columns, depth, lane_rows, lane_columns, **more)
    return ProductTile(tile.lane_rows, tile.lane_columns, tile.local, tile)


# The parameter ``tile`` of routes, named by the kernel: small workgroups and large tiles for CPU drivers, then
# what GPUs take.
TILES: Mapping[str, ProductTile] = {
    "register_16x8": ProductTile(16, 8, 8),
    "register_12x8": ProductTile(12, 8, 8),
    "register_8x8": ProductTile(8, 8, 8),
    "register_8x16": ProductTile(8, 16, 8),
    "register_4x8": ProductTile(4, 8, 8),
    "register_1x8": ProductTile(1, 8, 8),
    "shared_128x128x16": _in_shared(128, 128, 16, 8, 8),
    "shared_128x64x16": _in_shared(128, 64, 16, 8, 4),
    "shared_64x64x16": _in_shared(64, 64, 16, 4, 4),
    "shared_32x32x16": _in_shared(32, 32, 16, 4, 4),
    "register_8x4": ProductTile(8, 4, 64),
    "register_2x4": ProductTile(2, 4, 64),
    "shared_64x64x8": _in_shared(64, 64, 8, 4, 4),
    "shared_32x32x8": _in_shared(32, 32, 8, 4, 4),
    "shared_64x64x16loop": _in_shared(64, 64, 16, 4, 4, unroll=False),
    "shared_32x32x16loop": _in_shared(32, 32, 16, 4, 4, unroll=False),
    "register_4x4": ProductTile(4, 4, 64),
    "subgroup_32x8": ProductTile(32, 8, 8, subgroup=True),
    "subgroup_16x8": ProductTile(16, 8, 8, subgroup=True),
    "subgroup_8x8": ProductTile(8, 8, 8, subgroup=True),
    "subgroup_4x4": ProductTile(4, 4, 8, subgroup=True),
    "shared_128x64x16_8x8": _in_shared(128, 64, 16, 8, 8),
    "shared_64x128x16": _in_shared(64, 128, 16, 8, 8),
    "shared_128x96x16": _in_shared(128, 96, 16, 8, 8),
    "shared_64x96x16": _in_shared(64, 96, 16, 8, 4),
    "shared_128x128x8": _in_shared(128, 128, 8, 8, 8),
    "shared_64x64x16_8x4": _in_shared(64, 64, 16, 8, 4),
    "shared_64x32x16": _in_shared(64, 32, 16, 4, 4),
    "shared_32x64x16": _in_shared(32, 64, 16, 4, 4),
    "shared_64x64x32": _in_shared(64, 64, 32, 8, 8),
}
# Those that matmul has as well, by its names.
_OF_MATMUL = {
    name: same for name, tile in TILES.items() for same, shared in gemm.SHARED_TILES.items() if shared == tile.shared
}
_CPU = tuple(name for name, tile in TILES.items() if tile.local == 8 and not tile.shared and not tile.subgroup)
_CPU_SUBGROUP = tuple(name for name, tile in TILES.items() if tile.subgroup)
_GPU_REGISTER = ("register_8x4", "register_2x4")
_SHARED_RULE = ("shared_128x128x16", "shared_128x64x16", "shared_64x64x16", "shared_32x32x16")


_BY = Policy("kernels.products", str)
_LEAST_SIDE = Policy("kernels.products_least_side", int)


def _pick_for_cores(g: gemm.GemmProblem, fitting: Sequence[str], device: Device, element: str) -> str:
    sharing = [name for name in _CPU_SUBGROUP if name in fitting and unrolls(device)]
    return min(sharing or _CPU, key=lambda name: _cost(g, TILES[name], device))


def _pick_for_units(g: gemm.GemmProblem, fitting: Sequence[str], device: Device, element: str) -> str:
    if g.least_side < _LEAST_SIDE.of(device):
        kept = [name for name in _GPU_REGISTER if _stays_in_registers(TILES[name], device, element)]
        return min(kept or _GPU_REGISTER[-1:], key=lambda name: _cost(g, TILES[name], device))
    shared = {name: tile.shared for name, tile in TILES.items() if tile.shared and name in fitting}
    enough, by = ENOUGH.of(device).products, gemm.compilers(device, element)
    kept = [name for name, tile in shared.items() if by.keep(tile)]
    timed = {name: us for name in kept if (us := product_us(name, g, device)) is not None}
    if timed:
        return min(timed, key=timed.__getitem__)
    return tile_by_rule(_SHARED_RULE, shared, g.m, lambda name: g.blocks(*TILES[name].block), enough, by)


def product_us(name: str, g: gemm.GemmProblem, device: Device) -> float | None:
    """Microseconds of the launch by the tile of that name, in f32; None where that has no times."""
    nbytes = 4 * g.batches * (g.m * g.k + g.k * g.n + g.m * g.n)
    return shared_us(g, _OF_MATMUL[name], nbytes, device) if name in _OF_MATMUL else None


def _stays_in_registers(tile: ProductTile, device: Device, element: str) -> bool:
    """As the GPU's compiler had it; without its word it does."""
    sizes = {"TM": tile.rows, "TN": tile.columns}
    return compiled.fits(shaders.kernels.MATMUL_REGISTER, sizes, element, device) is not False


_PICK: Mapping[str, Callable[[gemm.GemmProblem, Sequence[str], Device, str], str]] = {
    "cores": _pick_for_cores,
    "units": _pick_for_units,
}


def params(g: gemm.GemmProblem, device: Device, element: str) -> Mapping[str, tuple[str, ...]]:
    """The parameter ``tile`` of a route whose product is ``g`` and has elements of a type, the rule's pick first."""
    fitting = [name for name, tile in TILES.items() if tile.fits(device)]
    return {"tile": first(_PICK[_BY.of(device)](g, fitting, device, element), fitting)}


def product(name: str, g: gemm.GemmProblem, operands: gemm.Operands, e: Epilogue, device: Device) -> Dispatch:
    """The launch of a product by the tile of that name."""
    tile = TILES[name]
    if tile.shared:
        return gemm.shared_product(g, operands, e, tile.shared, device)
    make = gemm.subgroup_product if tile.subgroup else gemm.register_product
    return make(g, operands, e, tile.sizes, device)


def _cost(g: gemm.GemmProblem, tile: ProductTile, device: Device) -> int:
    """What the tiles of a workgroup cover, where a row of a tile costs some columns on top and the other way round."""
    overhead = TILE_OVERHEAD.of(device)
    return g.blocks(*tile.block) * (tile.rows + overhead) * (tile.columns + overhead)


@dataclasses.dataclass(frozen=True, slots=True)
class Slab:
    """A part of the work that has the scratch for itself: images from ``image`` on, and of each ``count`` of what it
    is cut along (rows, pixels) from ``first`` on."""

    image: int
    images: int
    first: int
    count: int


def slabs(images: int, extent: int, most: int, step: int = 1) -> Iterator[Slab]:
    """Cut ``images`` x ``extent`` so that a slab has at most ``most``: several whole images, or a part of one that is
    a multiple of ``step`` where ``most`` allows one."""
    if most >= extent:
        together = most // extent
        for image in range(0, images, together):
            yield Slab(image, min(together, images - image), 0, extent)
        return
    size = max(1, most // step * step if most >= step else most)
    for image in range(images):
        for begin in range(0, extent, size):
            yield Slab(image, 1, begin, min(size, extent - begin))
