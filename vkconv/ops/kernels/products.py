"""A matrix product as one step of another op's program: the kernels of matmul with tiles to choose from, and how
work is cut so that its scratch stays within a budget."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.ops.core.base import most_invocations
from vkconv.ops.core.requirements import shuffles
from vkconv.ops.kernels.gemm import (
    REGISTER,
    SHARED,
    SUBGROUP,
    Epilogue,
    Layout,
    padded_bytes,
    register_product,
    shared_product,
    subgroup_product,
)
from vkconv.ops.kernels.gemm_tile import GemmTile
from vkconv.program import Bind, Dispatch
from vkconv.route import Params

SHADERS = (REGISTER, SHARED, SUBGROUP)
# Scratch that a route may take, as ExecuTorch caps that of its im2col (kIm2colScratchBudgetBytes; executorch#20653).
SCRATCH_BYTES = 16 << 20
# Workgroups that keep a GPU busy.
_ENOUGH = 256


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
        shared_bytes = padded_bytes(self.shared) if self.shared else 0
        if self.local > most_invocations(device) or shared_bytes > device.limit("maxComputeSharedMemorySize"):
            return False
        return not self.subgroup or (shuffles(device) and self.local % device.subgroup_size == 0)


def _in_shared(*sizes: int) -> ProductTile:
    tile = GemmTile(*sizes)
    return ProductTile(tile.lane_rows, tile.lane_columns, tile.local, tile)


# By number, the parameter ``product`` of routes: small workgroups and large tiles for CPU drivers, then what GPUs take.
TILES: tuple[ProductTile, ...] = (
    ProductTile(16, 8, 8),
    ProductTile(12, 8, 8),
    ProductTile(8, 8, 8),
    ProductTile(8, 16, 8),
    ProductTile(4, 8, 8),
    ProductTile(1, 8, 8),
    _in_shared(128, 128, 16, 8, 8),
    _in_shared(128, 64, 16, 8, 4),
    _in_shared(64, 64, 16, 4, 4),
    _in_shared(32, 32, 16, 4, 4),
    ProductTile(8, 4, 64),
    ProductTile(2, 4, 64),
    ProductTile(32, 8, 8, subgroup=True),
    ProductTile(16, 8, 8, subgroup=True),
    ProductTile(8, 8, 8, subgroup=True),
    ProductTile(4, 4, 8, subgroup=True),
)
_CPU, _SHARED, _GPU_REGISTER, _CPU_SUBGROUP = TILES[:6], TILES[6:10], TILES[10:12], TILES[12:]


def _pick_for_cpu(g: Layout, fitting: Sequence[ProductTile]) -> ProductTile:
    sharing = [tile for tile in _CPU_SUBGROUP if tile in fitting]
    return min(sharing or _CPU, key=lambda tile: _cost(g, tile))


def _pick_for_gpu(g: Layout, fitting: Sequence[ProductTile]) -> ProductTile:
    if min(g.m, g.n) < 16:
        return min(_GPU_REGISTER, key=lambda tile: _cost(g, tile))
    shared = [tile for tile in _SHARED if tile in fitting]
    return next((tile for tile in shared if _blocks(g, tile) >= _ENOUGH), shared[-1])


_PICK: Mapping[str, Callable[[Layout, Sequence[ProductTile]], ProductTile]] = {"cpu": _pick_for_cpu}


def params(g: Layout, device: Device) -> Mapping[str, tuple[int, ...]]:
    """The parameter ``product`` of a route whose product is ``g``: numbers of tiles, the rule's pick first."""
    fitting = [tile for tile in TILES if tile.fits(device)]
    best = _PICK.get(device.kind, _pick_for_gpu)(g, fitting)
    return {"product": (TILES.index(best), *(TILES.index(tile) for tile in fitting if tile != best))}


def product(number: int, g: Layout, e: Epilogue, binds: tuple[Bind, ...], device: Device) -> Dispatch:
    """The launch of a product by the tile of that number; bindings are a, b, bias and y."""
    tile = TILES[number]
    if tile.shared:
        return shared_product(g, e, binds, tile.shared, device)
    make = subgroup_product if tile.subgroup else register_product
    return make(g, e, binds, tile.sizes, device)


def _blocks(g: Layout, tile: ProductTile) -> int:
    rows, columns = tile.block
    return g.batches * ceil_div(g.m, rows) * ceil_div(g.n, columns)


def _cost(g: Layout, tile: ProductTile) -> int:
    """What the tiles of a workgroup cover, where a row of a tile costs 4 columns on top and the other way round."""
    return _blocks(g, tile) * (tile.rows + 4) * (tile.columns + 4)


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
        for first in range(0, extent, size):
            yield Slab(image, 1, first, min(size, extent - first))
