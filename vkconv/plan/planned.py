"""Nodes of a plan as they run, once it is known where values lie and what the host does."""

import dataclasses
from collections.abc import Collection, Iterable, Sequence

from vkconv.plan.bound import BoundNode
from vkconv.plan.inside import Homes
from vkconv.plan.model import PlannedNode
from vkconv.program import Program


def as_they_run(
    planned: Iterable[PlannedNode],
    steps: Sequence[tuple[BoundNode, Program]],
    homes: Homes,
    by_host: Collection[str],
) -> tuple[PlannedNode, ...]:
    """The nodes with the dispatches that are left of them where values lie inside others, none of those ``by_host``,
    which the host casts."""
    left = {node.name: len(program.steps) for node, program in steps if node.name in homes.copies}

    def as_it_runs(entry: PlannedNode) -> PlannedNode:
        if entry.name in by_host:
            return dataclasses.replace(entry, dispatches=0, remark="the host casts while it copies")
        if entry.name not in left:
            return entry
        copies = f"copies {left[entry.name]} of {entry.dispatches} parts"
        remark = "; ".join(filter(None, (entry.remark, copies)))
        return dataclasses.replace(entry, dispatches=left[entry.name], remark=remark)

    return tuple(map(as_it_runs, planned))
