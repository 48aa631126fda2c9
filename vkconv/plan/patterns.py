"""Patterns of nested operations, and the values of a graph that fit them.

A pattern of a value is one of these. A text names the value: wherever it comes again, it stands for the same one. A
number is a constant of one element that is equal to it. `Made` and `Product` are what a node makes of others; `Named`
gives what fits a pattern a name too.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from vkconv.call import Call
from vkconv.plan.bound import BoundNode
from vkconv.plan.rewrite import Rewriter

Found = Mapping[str, str]
"""Values of the graph by their names in a pattern."""


@dataclasses.dataclass(frozen=True)
class Made:
    """The result of an op whose call passes ``where``, by its operands in order; those of a sum or a product in any."""

    op: str
    operands: "tuple[Pattern, ...]"
    where: Callable[[Call], bool] = lambda call: True


@dataclasses.dataclass(frozen=True)
class Product:
    """A number times values, in any order and grouping: as products and quotients by constants that nothing else
    reads. The number is that of the graph up to a relative difference of ``tolerance``."""

    number: float
    values: "tuple[Pattern, ...]"
    tolerance: float = 1e-6


@dataclasses.dataclass(frozen=True)
class Named:
    """What fits a pattern, under a name."""

    name: str
    pattern: "Pattern"


Pattern = str | float | Made | Product | Named


def find(rewriter: Rewriter, patterns: Sequence[Made | Product], node: BoundNode) -> Found | None:
    """The values by which a node fits the first of some patterns that it fits; None where it fits none."""
    return next((found for pattern in patterns for found in _fit_node(rewriter, pattern, node, {})), None)


def _fit_node(rewriter: Rewriter, pattern: Made | Product, node: BoundNode, known: Found) -> Iterator[Found]:
    if isinstance(pattern, Product):
        number, values = _factors(rewriter, node)
        if len(values) == len(pattern.values) and math.isclose(number, pattern.number, rel_tol=pattern.tolerance):
            for order in itertools.permutations(values):
                yield from _fit_all(rewriter, pattern.values, order, known)
    elif node.call.op == pattern.op and len(node.reads) == len(pattern.operands) and pattern.where(node.call):
        reads = tuple(node.reads.values())
        for order in (reads, reads[::-1]) if pattern.op in ("add", "mul") else (reads,):
            yield from _fit_all(rewriter, pattern.operands, order, known)


def _fit_all(rewriter: Rewriter, patterns: Sequence[Pattern], values: Sequence[str], known: Found) -> Iterator[Found]:
    if not patterns:
        yield known
        return
    for found in _fit(rewriter, patterns[0], values[0], known):
        yield from _fit_all(rewriter, patterns[1:], values[1:], found)


def _fit(rewriter: Rewriter, pattern: Pattern, value: str, known: Found) -> Iterator[Found]:
    if isinstance(pattern, str):
        if known.get(pattern, value) == value:
            yield {**known, pattern: value}
    elif isinstance(pattern, Named):
        for found in _fit(rewriter, pattern.pattern, value, known):
            yield from _fit(rewriter, pattern.name, value, found)
    elif isinstance(pattern, Made | Product):
        maker = rewriter.maker(value, *(("mul", "div") if isinstance(pattern, Product) else (pattern.op,)))
        if maker is not None:
            yield from _fit_node(rewriter, pattern, maker, known)
    elif rewriter.scalar(value) == pattern:
        yield known


# Products are taken apart so deep and no deeper: long rows of them are no spelling of anything.
_MOST_NESTED = 6


def _factors(rewriter: Rewriter, node: BoundNode, deeper: int = _MOST_NESTED) -> tuple[float, list[str]]:
    """A product as a number and the values that are no constants, through products that nothing else reads."""
    if node.call.op not in ("mul", "div"):
        return 1.0, []
    number, values = 1.0, []
    for operand in ("a", "b"):
        value = node.reads[operand]
        constant = rewriter.scalar(value)
        inner = rewriter.maker(value, "mul", "div") if deeper and rewriter.only_reader(value) else None
        if constant is not None and (node.call.op == "mul" or (operand == "b" and constant != 0)):
            number *= constant if node.call.op == "mul" else 1 / constant
        elif node.call.op == "div" and operand == "b":
            return 1.0, []
        elif inner is not None:
            more, found = _factors(rewriter, inner, deeper - 1)
            number *= more
            values += found or [value]
        else:
            values.append(value)
    return number, values
