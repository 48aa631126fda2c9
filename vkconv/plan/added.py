"""What lies between a product and its reduction, as operands and attributes of the op that does all of it.

A kernel that reduces a product adds two values to it at most, each broadcast as numpy has it, then applies one
activation. Elementwise operations say that as nodes of their own or as steps of a chain.
"""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from vkconv.core import DType
from vkconv.graph.ir import AttrValue
from vkconv.ops.core.activation import ACTIVATIONS
from vkconv.ops.fused.addends import RESIDUALS
from vkconv.ops.kernels.epilogue import rescales
from vkconv.ops.pointwise.chain import BINARY_STEPS, UNARY_STEPS, Step
from vkconv.plan.bound import BoundNode
from vkconv.plan.chains import SELF, Row, rows_of
from vkconv.plan.rewrite import Rewriter

_BETWEEN = ("chain", *BINARY_STEPS, *UNARY_STEPS)


@dataclasses.dataclass(frozen=True)
class Between:
    """A product, and the steps from it to the value that is reduced; ``last`` is the node that makes that, the product
    itself where there are none."""

    maker: BoundNode
    last: BoundNode
    steps: tuple[Step, ...]
    is_alone: bool
    """Whether nothing else reads what lies between, all of it in the product's shape."""


def between(rewriter: Rewriter, value: str, *makers: str) -> Iterator[Between]:
    """All ways to see a value as steps from a product by one of these ops, those from later products first; without
    steps where it is one itself."""
    maker = rewriter.maker(value, *makers)
    if maker is not None:
        yield Between(maker, maker, (), True)
        return
    node = rewriter.maker(value, *_BETWEEN)
    rows = [turned for row in rows_of(rewriter, node) for turned in _turned(row)] if node is not None else []
    for row in sorted(rows, key=lambda row: rewriter.place(row.start), reverse=True):
        assert node is not None
        alone = rewriter.only_reader(row.start) and rewriter.specs[row.start] == rewriter.specs[value]
        if alone or rewriter.maker(row.start, *makers):  # values with one reader are a tree: none is met twice
            for before in between(rewriter, row.start, *makers):
                steps = (*before.steps, *row.steps)
                yield Between(before.maker, node, steps, alone and before.is_alone)


def _turned(row: Row) -> Iterator[Row]:
    """A row, and the same sums from each of the values that it begins with adding up."""
    yield row
    for i, step in enumerate(itertools.takewhile(lambda step: step.function == "add", row.steps)):
        if step.second not in ("", SELF):
            turned = dataclasses.replace(step, second=row.start)
            yield Row(step.second, (*row.steps[:i], turned, *row.steps[i + 1 :]))


@dataclasses.dataclass(frozen=True)
class Finished:
    """Operands and attributes of the op in place of the product's own, and of all between."""

    reads: dict[str, str]
    attrs: dict[str, AttrValue]


def finished(rewriter: Rewriter, found: Between) -> Finished | str:
    """All that lies between as what the op does of it, or why it cannot."""
    call, last, where = found.maker.call, found.last, f"{found.last} lies between them"
    if not found.steps:
        return Finished(dict(found.maker.reads), dict(call.attrs))
    if not found.is_alone:
        return f"{where}, and what is between has other readers or another shape"
    if call["act"] != "none" or rescales(call.attrs) or rewriter.specs[last.writes["y"]].dtype is not DType.F32:
        return f"{where}, which it does not apply before it stores"
    values: list[str] = []
    attrs: dict[str, AttrValue] = {}
    for step in found.steps:
        if step.function == "add" and step.second not in ("", SELF) and not attrs:
            values.append(step.second)
        elif step.function in ("add", "sub") and step.numbers and not step.reversed and not attrs:
            values.append(_scalar(rewriter, last, step.numbers[0] if step.function == "add" else -step.numbers[0]))
        elif step.function in UNARY_STEPS and not attrs:
            parameters = zip(("act_a", "act_b"), step.numbers, strict=False)
            attrs |= {"act": ACTIVATIONS[step.function].name, **dict(parameters)}
        else:
            return f"{where}, which it does not apply before it stores"
    values = [*(found.maker.reads[name] for name in RESIDUALS if name in found.maker.reads), *values]
    if len(values) > len(RESIDUALS):
        return f"{where}: it adds {len(RESIDUALS)} values to what it makes, and here are {len(values)}"
    rank = len(rewriter.specs[last.writes["y"]].dims) if call.op == "conv2d" else 0
    named = {name: _of_rank(rewriter, last, value, rank) for name, value in zip(RESIDUALS, values, strict=False)}
    return Finished({**found.maker.reads, **named}, {**call.attrs, **attrs})


def _scalar(rewriter: Rewriter, node: BoundNode, number: float) -> str:
    return rewriter.constant(f"{node.name}.added", np.full(1, number, np.float32))


def _of_rank(rewriter: Rewriter, node: BoundNode, value: str, rank: int) -> str:
    """A value with dimensions of 1 in front, where it has fewer than ``rank``."""
    dims = rewriter.specs[value].dims
    if len(dims) >= rank:
        return value
    shape = (*(1,) * (rank - len(dims)), *dims)
    constant = rewriter.constants.get(value)
    if constant is not None:
        return rewriter.constant(f"{node.name}.added", constant.reshape(shape))
    return rewriter.before("reshape", {"x": value}, {"shape": shape}, rewriter.name(f"{node.name}/shape"))
