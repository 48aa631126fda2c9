"""Where the time of profiled runs went, as tables by node and by op type."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from vkconv.ops import OPS
from vkconv.pages import render
from vkconv.plan.arriving import Arrived
from vkconv.plan.commands import Command, Copy, Launch
from vkconv.plan.model import Plan
from vkconv.plan.timing import Timing
from vkconv.table import Column, Table


@dataclasses.dataclass(frozen=True)
class Part:
    """One row of a profile: a node, a copy or something the host did, with its arithmetic and the bytes that it
    must move (0: not counted)."""

    name: str
    op: str
    route: str
    us: float
    flops: int = 0
    nbytes: int = 0


@dataclasses.dataclass(frozen=True)
class Profile:
    """At least one profiled run of a plan. Its tables show one real run, so that their rows sum to its wall time.

    A timestamp waits for what came before it, so that commands which may overlap in a plain run do not overlap
    here: on some devices (lavapipe) a profiled run takes noticeably longer than a plain one.
    """

    plan: Plan
    timings: Sequence[Timing]

    @property
    def median_index(self) -> int:
        """Index of the run shown: the one whose wall time is the median (of an even number, the lower one)."""
        order = sorted(range(len(self.timings)), key=lambda i: self.timings[i].wall_us)
        return order[(len(order) - 1) // 2]

    @property
    def timing(self) -> Timing:
        """The run shown."""
        return self.timings[self.median_index]

    @property
    def parts(self) -> list[Part]:
        """Everything the run shown did, in order of time, nothing twice: the parts sum to its wall time."""
        timing = self.timing
        return [
            *([Part("check inputs", "host", "python", timing.check_us)] if timing.called_ns else []),
            *([Part("record", "host", "commands", timing.record_us)] if timing.record_us else []),
            Part("write inputs", "host", "memcpy", timing.write_us),
            Part("submit", "host", "queue", timing.submit_us),
            *command_parts(self.plan, timing),
            Part("wait", "host", "queue", timing.wait_us),
            Part("read outputs", "host", "memcpy", timing.read_us),
        ]

    @property
    def nodes(self) -> Table:
        """One row per node, copy and host step, in order of time."""
        wall_us = self.timing.wall_us
        rows = [
            (p.name, p.op, p.route, *figures)
            for p, figures in zip(self.parts, _figures(self.parts, wall_us), strict=True)
        ]
        return Table(self._title(), [Column(name) for name in ("node", "op", "route")] + _FIGURES, rows)

    @property
    def ops(self) -> Table:
        """One row per op type, copies and host steps taken together, the longest first."""
        sums: dict[str, list[Part]] = {}
        for part in self.parts:
            sums.setdefault(part.op, []).append(part)
        totals = [
            Part(op, op, "", sum(p.us for p in parts), sum(p.flops for p in parts), sum(p.nbytes for p in parts))
            for op, parts in sums.items()
        ]
        totals.sort(key=lambda part: -part.us)
        rows = [
            (p.op, len(sums[p.op]), *figures)
            for p, figures in zip(totals, _figures(totals, self.timing.wall_us), strict=True)
        ]
        return Table("", [Column("op"), Column("count"), *_FIGURES], rows)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of ``nodes`` as dicts."""
        return self.nodes.rows

    @property
    def note(self) -> str:
        """What the rows sum to, beside the clock around the call."""
        timing, rows_us = self.timing, sum(part.us for part in self.parts)
        return (
            f"the rows sum to {rows_us:.1f} us, the wall time is {timing.wall_us:.1f} us\n"
            f"(a clock around the call, which also reads timestamps, says {timing.call_us:.1f} us)"
        )

    def data(self) -> dict[str, Any]:
        """The profile as JSON data, times in microseconds."""
        return {
            "schema": "vkconv.profile/1",
            "wall_us": self.timing.wall_us,
            "call_us": self.timing.call_us,
            "runs_wall_us": [timing.wall_us for timing in self.timings],
            "nodes": self.nodes.rows,
            "ops": self.ops.rows,
        }

    def __str__(self) -> str:
        return f"{self.nodes}\n\n{self.ops}\n\n{self.note}"

    def to_markdown(self) -> str:
        return f"{self.nodes.to_markdown()}\n\n{self.ops.to_markdown()}\n\n{self.note}"

    def _repr_html_(self) -> str:
        return render("told.html.j2", lines=[self.note], tables=[self.nodes._repr_html_(), self.ops._repr_html_()])

    def _title(self) -> str:
        walls = [timing.wall_us for timing in self.timings]
        spread = f", the median of {len(walls)} runs from {min(walls):.0f} to {max(walls):.0f}" if walls[1:] else ""
        return f"{self.plan.graph} on {self.plan.device.name}: {self.timing.wall_us:.0f} us{spread}"


_FIGURES = [
    Column("time", unit="us"),
    Column("share", unit="%", digits=3),
    Column("cumulative", unit="%", digits=3),
    Column("GFLOP/s"),
    Column("GB/s"),
]


def command_parts(plan: Plan, timing: Timing) -> list[Part]:
    """The GPU's parts in order; the launches of one node are one part."""
    nodes = {node.name: node for node in plan.nodes}
    sums: dict[tuple[bool, str], tuple[Command | Arrived, float]] = {}
    for command, us in zip(timing.commands, timing.command_us, strict=True):
        key = isinstance(command, Launch), command.node
        sums[key] = command, sums[key][1] + us if key in sums else us
    parts = []
    for command, us in sums.values():
        if isinstance(command, Arrived):
            parts.append(Part(command.node, "wait", "upload", us))
        elif isinstance(command, Copy):
            parts.append(Part(command.node, "copy", "transfer", us, 0, 2 * command.target.nbytes))
        else:
            node = nodes[command.node]
            op = OPS[node.call.op]
            parts.append(Part(node.name, op.name, node.route, us, op.flops(node.call), op.compulsory_bytes(node.call)))
    return parts


def _figures(parts: Iterable[Part], wall_us: float) -> list[tuple[float | None, ...]]:
    """Time, share, cumulative share, GFLOP/s and GB/s of each part; None where there is nothing to count."""
    rows: list[tuple[float | None, ...]] = []
    cumulative_us = 0.0
    for part in parts:
        cumulative_us += part.us
        rates = (amount / part.us / 1e3 if amount and part.us > 0 else None for amount in (part.flops, part.nbytes))
        rows.append((part.us, 100 * part.us / wall_us, 100 * cumulative_us / wall_us, *rates))
    return rows
