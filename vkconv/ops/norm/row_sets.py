"""Rows of a tensor: sets of elements that share a statistic, and how shaders/include/row_walk.glsl walks them."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

from vkconv.core import ceil_div

Walk = Literal["dense", "strided", "runs"]
# As in shaders/include/row_set.glsl.
WALKS: tuple[Walk, ...] = ("dense", "strided", "runs")


@dataclasses.dataclass(frozen=True, slots=True)
class RowSet:
    """``rows`` rows of ``count`` elements. Row r begins at r / ``period`` * ``outer_step`` + r % ``period`` *
    ``inner_step``; its elements lie in runs of ``run`` neighbours, ``run_step`` apart."""

    rows: int
    count: int
    period: int
    outer_step: int
    inner_step: int
    run: int
    run_step: int

    def __str__(self) -> str:
        return f"{self.rows} rows of {self.count}"

    @property
    def walk(self) -> Walk:
        """How the elements of a row follow each other: as neighbours, one by one ``run_step`` apart, or in runs."""
        if self.run == self.count or self.count <= 1:
            return "dense"
        return "strided" if self.run == 1 else "runs"

    @property
    def vec4(self) -> bool:
        """Whether every row is whole vec4, each aligned."""
        steps = [self.run, self.count]
        steps += [self.run_step] if self.walk == "runs" else []
        steps += [self.outer_step] if self.rows > self.period else []
        steps += [self.inner_step] if self.period > 1 else []
        return self.walk != "strided" and all(step % 4 == 0 for step in steps)

    @property
    def push(self) -> dict[str, int]:
        """Its push constants."""
        return {**dataclasses.asdict(self), "run": max(1, self.run)}

    def items(self, lanes: int) -> int:
        """Items of four elements that each of the lanes of a row takes."""
        return ceil_div(self.count, 4 * lanes)


def along(shape: Sequence[int], first: int, last: int) -> RowSet:
    """Rows along the dimensions ``first`` to ``last``, in the order of the others."""
    rows, count, inner = math.prod(shape[:first]), math.prod(shape[first : last + 1]), math.prod(shape[last + 1 :])
    if inner == 1:
        return RowSet(rows, count, 1, count, 0, count, 0)
    return RowSet(rows * inner, count, max(1, inner), count * inner, 1, 1, inner)


def across(shape: Sequence[int], channels: int) -> RowSet:
    """A row for each of the first ``channels`` of dimension 1, over all others."""
    images, inner = shape[0], math.prod(shape[2:])
    row = RowSet(channels, images * inner, max(1, channels), 0, inner, inner, channels * inner)
    return dataclasses.replace(row, run=row.count, run_step=0) if images == 1 else row
