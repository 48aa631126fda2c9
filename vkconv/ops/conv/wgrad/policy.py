"""Split-K policies: how many slices the sum is cut into, and along which dimensions."""

import dataclasses
import functools
from collections.abc import Callable

from vkconv.core import ceil_div
from vkconv.cost import compute_units, occupancy_estimate
from vkconv.device import Device
from vkconv.ops.conv.wgrad import images
from vkconv.ops.conv.wgrad.cost import cheapest, most_in_scratch, registers, tiles_by_cost
from vkconv.ops.conv.wgrad.kernels import SplitK, evenly
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.conv.wgrad.tiles import TILES
from vkconv.ops.kernels import split_rules
from vkconv.ops.kernels.split_k import has_low_parallelism
from vkconv.ops.kernels.split_rules import SumTile, batch_only

Into = Callable[[WeightGradient, int], SplitK]


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
    """A rule of split-K. ``default`` gives the slices and why, ``into`` so many slices. ``by_cost`` where the tile is
    chosen together with the slices, else for their number."""

    name: str
    default: Callable[[WeightGradient, Device], tuple[SplitK, str]]
    into: Into
    by_cost: bool = False

    def slices(self, p: WeightGradient, device: Device) -> int:
        """The default of the parameter ``split_k``."""
        return self.default(p, device)[0].count(p)

    def tiles(self, p: WeightGradient, device: Device) -> tuple[str, ...]:
        """Legal values of the parameter ``tile``, the default first."""
        return tiles_by_cost(p, device, None if self.by_cost else self.slices(p, device))

    def split(self, p: WeightGradient, device: Device, slices: int) -> tuple[SplitK, str]:
        """So many slices, and why so many. Boxes may be fewer."""
        split, why = self.default(p, device)
        return (split, why) if slices == split.count(p) else (self.into(p, slices), f"{slices} asked for")


def _in_scratch(p: WeightGradient, device: Device, split: SplitK, why: str, into: Into) -> tuple[SplitK, str]:
    """The slices, or as many as the scratch holds."""
    most = most_in_scratch(p, device)
    return (split, why) if split.count(p) <= most else (into(p, most), f"{why}; {most} fit the scratch")


def _reduction(p: WeightGradient) -> SumTile:
    return p.reduction if p.deep else (p.n, *p.out[1:])


def _boxes(p: WeightGradient, tile: SumTile) -> SplitK:
    """Boxes of a tile of as many dimensions as `_reduction` has."""
    n, *rest = tile
    d, h, w = (*p.out[: 3 - len(rest)], *rest)
    return SplitK((max(n, 1), max(d, 1), max(h, 1), max(w, 1)))


def _images(p: WeightGradient, device: Device) -> tuple[SplitK, str]:
    """IREE's first rule, and where it would not split at all, one image to a slice."""
    tile, why = batch_only(p.c_out, p.channels, p.extent[0 if p.deep else 1 :], p.n)
    of_slice = tile[0] if tile else ceil_div(p.n, 512)
    return _in_scratch(p, device, _into_images(p, ceil_div(p.n, of_slice) if p.n else 1), why, _into_images)


def _into_images(p: WeightGradient, slices: int) -> SplitK:
    return _boxes(p, (ceil_div(p.n, slices), *_reduction(p)[1:]))


def _bands(p: WeightGradient, device: Device, ragged: bool = True) -> tuple[SplitK, str]:
    if not p.pixels:
        return evenly(p), "nothing to sum"
    total = split_rules.Sum(p.rows * p.channels, p.size, _reduction(p))
    tile, why = split_rules.bands(total, has_low_parallelism(device), ragged=ragged)
    return _in_scratch(p, device, _boxes(p, tile) if tile else evenly(p), why, _into_boxes)


def _iree(p: WeightGradient, device: Device) -> tuple[SplitK, str]:
    """The bands as upstream has them: by factors alone, and one tap at each pixel is a matrix product to it
    (iree#23423)."""
    if not (p.pixels and p.pointwise):
        return _bands(p, device, ragged=False)
    low = has_low_parallelism(device)
    tile, why = split_rules.matmul_bands(p.rows, p.channels, _reduction(p), p.groups, low)
    return _in_scratch(p, device, _boxes(p, tile) if tile else evenly(p), f"a product, {why}", _into_boxes)


def _into_boxes(p: WeightGradient, slices: int) -> SplitK:
    return _boxes(p, split_rules.into(_reduction(p), slices))


@functools.lru_cache(maxsize=256)
def _auto(p: WeightGradient, device: Device) -> tuple[SplitK, str]:
    name, slices = cheapest(p, device)
    tile = TILES[name]
    why = (
        f"{tile.blocks(p)} workgroups of {tile.k_tiles(p)} k-tiles, {compute_units(device)} compute units to keep busy"
    )
    return _that_can_be(p, device, slices, why)


@functools.lru_cache(maxsize=256)
def _occupancy(p: WeightGradient, device: Device) -> tuple[SplitK, str]:
    tile = TILES[cheapest(p, device)[0]]
    capacity = occupancy_estimate(device, tile.local, tile.shared_bytes, registers(tile, p, device))
    return _that_can_be(p, device, *split_rules.occupancy(tile.blocks(p), tile.k_tiles(p), capacity))


def _that_can_be(p: WeightGradient, device: Device, slices: int, why: str) -> tuple[SplitK, str]:
    """No loop longer than the driver runs, no fewer slices than launches, no more than the scratch holds."""
    if device.max_loop_iterations is not None:
        iterations = TILES[cheapest(p, device)[0]].iterations(p, evenly(p))
        least = ceil_div(iterations, device.max_loop_iterations - 64)
        if least > slices:
            slices, why = least, "the driver ends longer loops"
    return _in_scratch(p, device, evenly(p, max(slices, images.parts(p, device))), why, evenly)


WHOLE = Policy("whole", lambda p, device: (evenly(p), "the whole sum"), lambda p, slices: evenly(p))
IMAGES = Policy("images", _images, _into_images)
AUTO = Policy("auto", _auto, evenly, by_cost=True)
BANDS = Policy("bands", _bands, _into_boxes)
IREE = Policy("iree", _iree, _into_boxes)
OCCUPANCY = Policy("occupancy", _occupancy, evenly, by_cost=True)
