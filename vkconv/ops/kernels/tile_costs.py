"""Times of the tiles of a product as a GPU took them, and the tile and split-K that should take the least."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

from vkconv.core import ceil_div
from vkconv.cost import Measured, launch_us, scaled
from vkconv.device import Device, Target, target_of
from vkconv.ops.kernels.gemm_tile import ENOUGH


@dataclasses.dataclass(frozen=True, slots=True)
class TileCosts:
    """Costs by tile, as those of `Measured`; none: no rule by cost. With split-K, us of the launch that adds the slices
    up and of a MiB that it reads and writes. ``forms``: what a k-tile takes in a form of the kernel, in times of the
    plain one's."""

    costs: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    sum_us: float = 0.0
    sum_mib_us: float = 0.0
    forms: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def of(self, name: str) -> Measured:
        """The cost of the tile of that name."""
        first, first_k, further, further_k, *together = self.costs[name]
        return Measured(first, first_k, further, further_k, *map(int, together))

    def sum(self, nbytes: float) -> float:
        """Microseconds of the launch that adds slices up, which moves so many bytes."""
        return self.sum_us + self.sum_mib_us * nbytes / 2**20

    def us(self, name: str, work: "Work", slices: int, target: Target) -> float:
        """Microseconds of a product by that tile in so many slices."""
        k_tiles = ceil_div(work.k_tiles, slices) * self.forms.get(work.form, 1.0)
        product = launch_us(self.of(name), slices * work.workgroups, k_tiles, target)
        return product + (self.sum(4 * (slices + 1) * work.outputs) if slices > 1 else 0.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """What a tile makes of a product: workgroups and k-tiles of each, without split-K; results in all, and the form of
    the kernel."""

    workgroups: int
    k_tiles: int
    outputs: int
    form: str = ""


# Of what was measured; and what split-K should save at least, as it takes scratch.
_LEAST_K_TILES, _MOST_SLICES, _SAVES = 4, 16, 1.05


def least_time(
    costs: TileCosts, tiles: Iterable[str], slices: Sequence[int], work: Callable[[str], Work], device: Device
) -> tuple[str, int] | None:
    """Which of some tiles and which of the ``slices`` should take the least time, split-K with as many workgroups as
    `ENOUGH` allows at most; None where no tile has a cost."""
    target, most = target_of(device), scaled(ENOUGH.of(device).split_k_most, device)

    def ways() -> Iterable[tuple[float, str, int]]:
        for name, count in itertools.product((name for name in tiles if name in costs.costs), slices):
            made = work(name)
            fits = count <= _MOST_SLICES and made.k_tiles >= count * _LEAST_K_TILES and count * made.workgroups <= most
            if count == 1 or fits:
                yield costs.us(name, made, count, target) * (_SAVES if count > 1 else 1.0), name, count

    best = min(ways(), default=None)
    return best and best[1:]
