"""Values that nodes update in place: what may be written over."""

from collections.abc import Callable, Collection, Mapping, Sequence

from vkconv.core import GraphError
from vkconv.plan.bound import BoundGraph, BoundNode
from vkconv.program import Program


def check_updates(
    bound: BoundGraph,
    steps: Sequence[tuple[BoundNode, Program]],
    updated: Mapping[str, str],
    same: Callable[[str], str],
) -> None:
    """GraphError where a node writes over what is constant, or what something else reads. ``updated`` has, by what is
    updated, the value whose bytes it takes over; ``same`` is the value that one is by another name."""
    for y, x in updated.items():
        source = same(x)
        readers = [n for n, _ in steps if any(same(value) == source for value in n.reads.values())]
        if source in bound.constants or len(readers) > 1 or source in map(same, bound.outputs):
            node = next(n for n, _ in steps if y in n.writes.values())
            others = [str(n) for n in readers if n is not node]
            why = "it is constant" if source in bound.constants else f"{', '.join(others) or 'the user'} reads it"
            raise GraphError(f"graph {bound.name!r}, {node}: it updates {x!r} in place, and {why}; leave in_place out")


def check_caches(bound: BoundGraph, caches: Collection[str], updated: Collection[str]) -> None:
    """GraphError for a cache that is not among the values ``updated`` in place."""
    for name in sorted(set(caches) - set(updated)):
        raise GraphError(
            f"graph {bound.name!r}: no node updates the cache {name!r} ({bound.specs[name]}) where it lies, since "
            "what does is computed in another type here; leave bounds and caches out, or give the cache a type of "
            "tensor_scatter's"
        )
