"""Times of the tiles of a product as a GPU took them, and the tile and split-K that should take the least."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

from vkconv.core import ceil_div
from vkconv.cost import Measured, Rate, Scale, launch_us, scaled
from vkconv.device import Device, Target, target_of
from vkconv.ops.kernels.gemm_tile import ENOUGH


@dataclasses.dataclass(frozen=True, slots=True)
class TileCosts:
    """Costs by tile, as those of `Measured`, of the device of the shipped file ``timed_on``; none: no rule by cost.
    ``rate``: what products go by. With split-K, us of the launch that adds the slices up and of a MiB that it reads and
    writes. ``forms``: what a k-tile takes in a form of the kernel, in times of the plain one's. ``wait_us``: the least
    that one takes whose operands come from memory, as weights between layers do; calls that are timed alone find theirs
    in caches. ``timed``: the tiles that were timed in a form, where not all were; no other is taken in it. A choice
    has slices of no fewer k-tiles and no more slices than were timed, takes at most ``saves`` of the time of the
    rule's, and where that makes fewer than ``few`` workgroups for each compute unit, has no fewer of them."""

    costs: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    sum_us: float = 0.0
    sum_mib_us: float = 0.0
    forms: Mapping[str, float] = dataclasses.field(default_factory=dict)
    wait_us: float = 0.0
    timed: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    least_k_tiles: int = 1
    most_slices: int = 1
    saves: float = 1.0
    few: float = 0.0
    timed_on: str = ""
    rate: Rate = "fma_per_unit"

    def has(self, name: str, form: str) -> bool:
        """Whether the tile of that name was timed in a form."""
        return name in self.timed.get(form, self.costs)

    def scale(self, target: Target) -> Scale:
        """What makes the times those of a target."""
        return Scale.of(self.timed_on, target, self.rate)

    def of(self, name: str, scale: Scale, products: float = 0.0) -> Measured:
        """The cost of the tile of that name, of whose k-tiles each is so many multiply-adds."""
        first, first_k, further, further_k, *more = self.costs[name]
        together = int(more[0]) if more else 1
        return Measured(first, first_k, further, further_k, together, scale, products)

    def sum(self, nbytes: float, scale: Scale) -> float:
        """Microseconds of the launch that adds slices up, which moves so many bytes."""
        return scale.launched(self.sum_us) + scale.moved(self.sum_mib_us * nbytes / 2**20)

    def us(self, name: str, work: "Work", slices: int, target: Target) -> float:
        """Microseconds of a product by that tile in so many slices."""
        return self.times(name, work, target)(slices)[0]

    def times(self, name: str, work: "Work", target: Target) -> Callable[[int], tuple[float, float]]:
        """The same by the number of slices, and without the bound by memory, which tells apart what that makes
        equal."""
        scale, form = self.scale(target), self.forms.get(work.form, 1.0)
        cost = self.of(name, scale, work.products / form)

        def us(slices: int) -> tuple[float, float]:
            workgroups, k_tiles = slices * work.workgroups, ceil_div(work.k_tiles, slices) * form
            nbytes = scale.bound(work.nbytes + 4 * (slices - 1) * work.outputs)
            waited = scale.launched(cost.first + k_tiles * self.wait_us)
            added = self.sum(4 * (slices + 1) * work.outputs, scale) if slices > 1 else 0.0
            unbound = max(launch_us(cost, workgroups, k_tiles, target), waited) + added
            bound = max(launch_us(cost, workgroups, k_tiles, target, nbytes), waited) + added if nbytes else unbound
            return bound, unbound

        return us


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """What a tile makes of a product: workgroups and k-tiles of each, without split-K; results in all, and the form of
    the kernel; multiply-adds of a k-tile, and bytes of operands and results."""

    workgroups: int
    k_tiles: int
    outputs: int
    form: str = ""
    products: int = 0
    nbytes: int = 0


Way = tuple[str, int]
"""A tile by its name, and slices of K."""


def least_time(
    costs: TileCosts,
    rule: Way,
    tiles: Collection[str],
    slices: Sequence[int],
    work: Callable[[str], Work],
    device: Device,
) -> Way:
    """Which of some tiles and which of the ``slices`` should take the least time, split-K with as many workgroups as
    `ENOUGH` allows at most; what the rule takes where nothing is plainly better, or no tile has a cost."""
    if rule[0] not in costs.costs:
        return rule
    target, most = target_of(device), scaled(ENOUGH.of(device).split_k_most, device)
    works = {name: work(name) for name in {rule[0], *tiles}}

    @functools.cache
    def times(name: str) -> Callable[[int], tuple[float, float]]:
        return costs.times(name, works[name], target)

    def us(way: Way) -> tuple[float, float]:
        return times(way[0])(way[1])

    def fits(way: Way) -> bool:
        made, count = works[way[0]], way[1]
        several = count <= costs.most_slices and made.k_tiles >= count * costs.least_k_tiles
        return count * made.workgroups >= least and (count == 1 or (several and count * made.workgroups <= most))

    by_rule = rule[1] * works[rule[0]].workgroups
    least = by_rule if by_rule < costs.few * target.compute_units else 1
    known = [name for name in tiles if costs.has(name, works[name].form)]
    best = min(filter(fits, itertools.product(known, slices)), key=us, default=rule)
    return best if us(best) < tuple(costs.saves * one for one in us(rule)) else rule
