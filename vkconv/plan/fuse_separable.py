"""The pass that makes one node of a depthwise and a 1x1 convolution of its result, where that pays.

What pays is the fused op's own rule: the pass asks which route the op would take, and leaves the nodes where that is
the one that runs them in turn.
"""

from collections.abc import Sequence

from vkconv.call import Call
from vkconv.core import GraphError, RouteError
from vkconv.ops.conv.common import is_matrix
from vkconv.ops.core.base import Attrs
from vkconv.ops.fused.convolutions import ACTIVATIONS
from vkconv.ops.fused.in_turn import UNFUSED
from vkconv.ops.kernels.epilogue import EPILOGUE_ATTRS, rescales
from vkconv.ops.kernels.windows import WINDOW_ATTRS
from vkconv.plan.bound import BoundNode
from vkconv.plan.fusion import Fusion, is_given
from vkconv.plan.rewrite import Rewriter

_LAST = ("w", "b", "slope", "residual")


class SeparableFusion(Fusion):
    """The pass: the last convolution's node stands for both."""

    op = "separable_conv2d"

    def _rule(self, rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
        before = self.before(rewriter, node)
        if before is None:
            return None
        asked = self._is_asked(node, rewriter.ops[self.op])
        if any(is_given(self._given, maker) for maker in before) or (is_given(self._given, node) and not asked):
            return None
        reads, attrs = self.of_first(before)
        reads |= {name: node.reads[name] for name in _LAST if name in node.reads}
        attrs |= {attr.name: node.call[attr.name] for attr in EPILOGUE_ATTRS}
        try:
            made = rewriter.node(node, self.op, reads, attrs, node.name)
            choice = self._choose(made.call, made.name)
        except (GraphError, RouteError):
            return None
        parts = " and ".join(f"{maker.call.op} {maker.name!r}" for maker in before)
        if not asked and choice.route.name == UNFUSED:
            return None
        self.remarks[made.name] = f"{parts} {'is' if len(before) == 1 else 'are'} part of it"
        return made

    def before(self, rewriter: Rewriter, node: BoundNode) -> Sequence[BoundNode] | None:
        """The nodes that become one with a 1x1 convolution, in their order; None where this or they are others."""
        depthwise = depthwise_before(rewriter, node)
        return None if depthwise is None else [depthwise]

    def of_first(self, before: Sequence[BoundNode]) -> tuple[dict[str, str], Attrs]:
        """What the fused op reads of these nodes, and its attributes that are theirs."""
        return of_depthwise(before[-1])


def is_pointwise(call: Call) -> bool:
    """Whether a call is a 1x1 convolution of every pixel and all channels."""
    return call.op == "conv2d" and is_matrix(call) and call["groups"] == 1


def only_activated(call: Call) -> bool:
    """Whether nothing but a bias and an activation that may come between two convolutions ends a convolution."""
    ends = call.has("slope") or call.has("residual") or rescales(call.attrs)
    return not ends and call["act"] in ACTIVATIONS


def depthwise_before(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """The depthwise convolution that nothing but this 1x1 convolution reads; None where the two are others."""
    if not is_pointwise(node.call):
        return None
    maker = rewriter.maker(node.reads["x"], "conv2d")
    if maker is None or not rewriter.only_reader(node.reads["x"]) or not only_activated(maker.call):
        return None
    groups = int(maker.call["groups"])
    return maker if groups > 1 and maker.call.shape("w")[1] == 1 else None


def of_depthwise(depthwise: BoundNode) -> tuple[dict[str, str], Attrs]:
    """What the fused op reads of a depthwise convolution, and its attributes."""
    call, names = depthwise.call, {"x": "x", "w": "wd", "b": "bd"}
    reads = {name: depthwise.reads[operand] for operand, name in names.items() if operand in depthwise.reads}
    attrs = {attr.name: call[attr.name] for attr in WINDOW_ATTRS}
    return reads, {**attrs, "between": call["act"], "between_a": call["act_a"], "between_b": call["act_b"]}


class InvertedResidualFusion(SeparableFusion):
    """The same of a 1x1 convolution before the depthwise one, which only that one reads."""

    op = "inverted_residual"

    def before(self, rewriter: Rewriter, node: BoundNode) -> Sequence[BoundNode] | None:
        depthwise = depthwise_before(rewriter, node)
        if depthwise is None or int(depthwise.call["groups"]) != depthwise.call.shape("w")[0]:
            return None
        expand = rewriter.maker(depthwise.reads["x"], "conv2d")
        if expand is None or not rewriter.only_reader(depthwise.reads["x"]):
            return None
        return [expand, depthwise] if is_pointwise(expand.call) and only_activated(expand.call) else None

    def of_first(self, before: Sequence[BoundNode]) -> tuple[dict[str, str], Attrs]:
        expand, depthwise = before
        reads, attrs = of_depthwise(depthwise)
        names = {"x": "x", "w": "we", "b": "be"}
        reads |= {name: expand.reads[operand] for operand, name in names.items() if operand in expand.reads}
        call = expand.call
        return reads, {**attrs, "expand": call["act"], "expand_a": call["act_a"], "expand_b": call["act_b"]}
