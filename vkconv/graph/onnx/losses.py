"""Import rules for losses, in the ops that they are made of."""

from vkconv.graph.onnx.elementwise import Rule
from vkconv.graph.onnx.view import NodeView


def _nll(n: NodeView) -> None:
    _write_loss(n, n.input(0))


def _cross_entropy(n: NodeView) -> None:
    """The loss of the logarithms of softmax, which are the second output."""
    logs = n.emit("softmax", n.input(0), axis=1, log=True)
    n.write(1, "identity", logs)
    _write_loss(n, logs)


def _write_loss(n: NodeView, logs: str) -> None:
    """Negative log-likelihood: the logs (N, C, d...) at the target class (N, d...), each with its class' weight, summed
    or averaged by weight. Targets of ignore_index have no weight, and may be no class."""
    reduction = n.attr_str("reduction", "mean")
    if reduction not in ("none", "sum", "mean"):
        n.refuse(f"reduction={reduction!r}; ONNX has none, sum and mean")
    target, dtype = n.input(1), n.dtype(0)
    ignored = ""
    if n.has_attr("ignore_index"):
        ignored = n.emit("equal", target, n.number(n.attr_int("ignore_index", 0), n.dtype(1)))
        target = n.emit("where", ignored, n.number(0, n.dtype(1)), target)
    weights = n.emit("gather", n.input(2), target, axis=0) if n.has(2) else ""
    if ignored:
        weights = n.emit("where", ignored, n.number(0, dtype), weights or n.number(1, dtype))
    classes = n.emit("gather_elements", logs, n.emit("unsqueeze", target, axes=(1,)), axis=1)
    losses = n.emit("neg", n.emit("squeeze", classes, axes=(1,)))
    if weights:
        losses = n.emit("mul", losses, weights)
    if reduction == "none":
        n.write(0, "identity", losses)
    elif reduction == "sum" or not weights:
        n.write(0, "reduce", losses, op=reduction, keepdims=False)
    else:
        sums = [n.emit("reduce", value, op="sum", keepdims=False) for value in (losses, weights)]
        n.write(0, "div", *sums)


RULES: dict[str, Rule] = {
    "NegativeLogLikelihoodLoss": _nll,
    "SoftmaxCrossEntropyLoss": _cross_entropy,
}
