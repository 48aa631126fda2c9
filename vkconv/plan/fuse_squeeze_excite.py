"""The pass that makes one node of the gate of a squeeze-and-excite block, where that pays: of the mean of an image's
channels, a 1x1 convolution, and another one.

What pays is the fused op's own rule, as for other fused ops. What multiplies by the gate stays: a convolution behind it
may scale its input (the pass fuse_prologue).
"""

from vkconv.core import GraphError, RouteError
from vkconv.ops.fused.in_turn import UNFUSED
from vkconv.plan.bound import BoundNode
from vkconv.plan.fuse_reduce import reduction_of
from vkconv.plan.fuse_separable import is_pointwise, only_activated
from vkconv.plan.fusion import Fusion, is_given
from vkconv.plan.rewrite import Rewriter

_OP = "squeeze_excite"
_MEANS = ("reduce", "pool2d")


class SqueezeExciteFusion(Fusion):
    """The pass: the last convolution's node stands for the block."""

    def _rule(self, rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
        squeeze = _squeeze_before(rewriter, node)
        if squeeze is None:
            return None
        mean = _mean_before(rewriter, squeeze)
        mean = None if mean is None or is_given(self._given, mean) else mean
        before = [mean, squeeze] if mean else [squeeze]
        asked = self._is_asked(node, rewriter.ops[_OP])
        if any(is_given(self._given, maker) for maker in before) or (is_given(self._given, node) and not asked):
            return None
        reads = {"x": before[0].reads["x"], **_weights(squeeze, "1"), **_weights(node, "2")}
        first, last = squeeze.call, node.call
        attrs = {"act": first["act"], "act_a": first["act_a"], "act_b": first["act_b"]}
        attrs |= {"gate": last["act"], "gate_a": last["act_a"], "gate_b": last["act_b"]}
        try:
            made = rewriter.node(node, _OP, reads, attrs, node.name)
            choice = self._choose(made.call, made.name)
        except (GraphError, RouteError):
            return None
        if not asked and choice.route.name == UNFUSED:
            return None
        parts = " and ".join(f"{maker.call.op} {maker.name!r}" for maker in before)
        self.remarks[made.name] = f"{parts} {'are' if mean else 'is'} part of it"
        return made


def _weights(node: BoundNode, of: str) -> dict[str, str]:
    return {f"{name}{of}": node.reads[name] for name in ("w", "b") if name in node.reads}


def _squeeze_before(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """The first of two products of an image of one pixel, which only the other one, ``node``, reads; else None."""
    if not is_pointwise(node.call) or node.call.shape("x")[2:] != (1, 1) or not only_activated(node.call):
        return None
    squeeze = rewriter.maker(node.reads["x"], "conv2d")
    if squeeze is None or not rewriter.only_reader(node.reads["x"]):
        return None
    return squeeze if is_pointwise(squeeze.call) and only_activated(squeeze.call) else None


def _mean_before(rewriter: Rewriter, squeeze: BoundNode) -> BoundNode | None:
    """What makes the means of all pixels that only the first product reads; None where they are something else."""
    mean = rewriter.maker(squeeze.reads["x"], *_MEANS)
    if mean is None or not rewriter.only_reader(squeeze.reads["x"]):
        return None
    reduction, x = reduction_of(mean), mean.call.operands["x"]
    if reduction is None or x is None or len(x.dims) != 4:
        return None
    axes, attrs = reduction
    return mean if tuple(axes) == (2, 3) and attrs["op"] == "mean" and attrs["keepdims"] else None
