"""The pass that makes one node of elementwise operations in a row, so that memory is read and written once for all."""

import dataclasses
import math

from vkconv.core import DType, GraphError
from vkconv.ops.pointwise.binary import ROWS as BINARIES
from vkconv.ops.pointwise.chain import BINARY_STEPS, UNARY_STEPS, Step, attributes, steps_of
from vkconv.plan.bound import BoundNode
from vkconv.plan.rewrite import Rewriter

# The value itself as the second one of a step of a row; values of a graph may have a chain's own name for it, y.
SELF = "\0"
_COMMUTE = ("add", "mul", "minimum", "maximum")
_ELEMENTWISE = (*BINARY_STEPS, *UNARY_STEPS)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """The value that steps start from, and the steps; their second values are names of values of the graph, or `SELF`,
    the value itself."""

    start: str
    steps: tuple[Step, ...]


def fuse_chain(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """An elementwise operation on what another one makes for it alone, in the shape that it has itself, is a step more
    of that one. As many as a chain has room for, of operands and numbers too."""
    if node.call.op not in _ELEMENTWISE or next(iter(node.call.outputs.values())).dtype is not DType.F32:
        return None
    for row in rows_of(rewriter, node):
        maker = rewriter.maker(row.start, "chain", *_ELEMENTWISE)
        reads = sum(value == row.start for value in node.reads.values())
        if maker is None or rewriter.readers(row.start) != reads:
            continue
        if rewriter.specs[row.start] != rewriter.specs[next(iter(node.writes.values()))]:
            continue
        for before in rows_of(rewriter, maker):
            made = _chain(rewriter, node, before, row)
            if made is not None:
                return made
    return None


def _chain(rewriter: Rewriter, node: BoundNode, before: Row, row: Row) -> BoundNode | None:
    steps = [*before.steps, *(dataclasses.replace(s, second=SELF) if s.second == row.start else s for s in row.steps)]
    operands = dict.fromkeys([before.start, *(s.second for s in steps if s.second not in ("", SELF))])
    place = {SELF: "y", **{value: f"x{i}" for i, value in enumerate(operands)}}
    named = [dataclasses.replace(step, second=place.get(step.second, step.second)) for step in steps]
    try:
        return rewriter.node(node, "chain", {place[value]: value for value in operands}, attributes(named))
    except GraphError:  # more than a chain has room for
        return None


def rows_of(rewriter: Rewriter, node: BoundNode) -> list[Row]:
    """The ways to see a node as a value and steps on it."""
    if node.call.op == "chain":
        names = {**node.reads, "y": SELF, "": ""}
        steps = (dataclasses.replace(s, second=names[s.second]) for s in steps_of(node.call.attrs))
        return [Row(node.reads["x0"], tuple(steps))]
    if node.call.op in UNARY_STEPS:
        numbers = tuple(float(node.call[name]) for name in "ab" if name in node.call.attrs)
        return [Row(node.reads["x"], (Step(node.call.op, numbers=numbers),))]
    first, second = (node.reads[name] for name in BINARIES[node.call.op].operands)
    rows = []
    for start, other, turned in ((first, second, False), (second, first, node.call.op not in _COMMUTE)):
        number = rewriter.scalar(other)
        if start in rewriter.constants and other not in rewriter.constants:
            continue
        step = Step(node.call.op, "" if number is not None else other, turned, () if number is None else (number,))
        if number is None or not math.isnan(number):
            rows.append(Row(start, (step,)))
    return rows
