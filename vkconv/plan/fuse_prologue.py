"""The pass that lets a convolution scale, shift and activate its input itself, where that pays.

What pays is the fused op's own rule: the pass asks which route the op would take, and leaves the two nodes where that
is the one that runs them in turn.
"""

from collections.abc import Sequence

from vkconv.core import GraphError, RouteError, Shape
from vkconv.ops.fused.in_turn import UNFUSED
from vkconv.ops.kernels.prologue import ACTIVATIONS
from vkconv.ops.pointwise.chain import Step
from vkconv.plan.bound import BoundNode
from vkconv.plan.chains import rows_of
from vkconv.plan.fusion import Fusion, is_given
from vkconv.plan.rewrite import Rewriter

_OP = "prologue_conv2d"
_BEFORE = ("chain", "mul")


class PrologueFusion(Fusion):
    """The pass: the convolution's node stands for both."""

    def _rule(self, rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
        if node.call.op != "conv2d":
            return None
        value = node.reads["x"]
        maker = rewriter.maker(value, *_BEFORE)
        if maker is None or not rewriter.only_reader(value):
            return None
        for row in rows_of(rewriter, maker):
            reads = _prologue(rewriter, row.start, row.steps)
            if reads is None:
                continue
            asked = self._is_asked(node, rewriter.ops[_OP])
            if is_given(self._given, maker) or (is_given(self._given, node) and not asked):
                return None
            act = row.steps[-1].function
            attrs = {**node.call.attrs, "before": act if act in ACTIVATIONS else "none"}
            try:
                made = rewriter.node(node, _OP, {**node.reads, **reads}, attrs, node.name)
                choice = self._choose(made.call, made.name)
            except (GraphError, RouteError):
                return None
            if asked or choice.route.name != UNFUSED:
                self.remarks[made.name] = f"{maker.call.op} {maker.name!r} is part of it"
                return made
        return None


def _prologue(rewriter: Rewriter, start: str, steps: Sequence[Step]) -> dict[str, str] | None:
    """What a prologue reads that does what these steps do to a value: a product, then a sum, then an activation, of
    which only the first must be there; None where they are others."""
    rest = list(steps)
    if rest and rest[-1].function in ACTIVATIONS:
        rest.pop()
    if [step.function for step in rest] not in (["mul"], ["mul", "add"]):
        return None
    x = rewriter.specs[start]
    if len(x.dims) != 4:
        return None
    n, c = x.dims[:2]
    legal: list[set[Shape]] = [{(c, 1, 1), (1, c, 1, 1), (n, c, 1, 1)}, {(c, 1, 1), (1, c, 1, 1)}]
    reads = {"x": start}
    for name, step, dims in zip(("scale", "shift"), rest, legal, strict=False):
        second = rewriter.specs.get(step.second)
        if second is None or second.dims not in dims or second.dtype is not x.dtype:
            return None
        reads[name] = step.second
    return reads
