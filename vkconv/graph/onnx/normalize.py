"""Import rules for softmax and normalizations."""

from functools import partial

from vkconv.graph.ir import AttrValue
from vkconv.graph.onnx.elementwise import Rule
from vkconv.graph.onnx.view import NodeView

# Batch statistics as outputs: since then under an attribute, before simply where they are named.
_TRAINING_MODE_SINCE = 14


def _softmax(log: bool, n: NodeView) -> None:
    """Before opset 13 the input counts as a matrix: every dimension from axis on is one row."""
    if n.version >= 13:
        n.finish("softmax", n.input(0), axis=n.attr_int("axis", -1), log=log)
        return
    axis, rank = n.attr_int("axis", 1), n.rank(0)
    if axis == -1 or (rank is not None and axis == rank - 1):
        n.finish("softmax", n.input(0), axis=-1, log=log)
        return
    rows = n.emit("softmax", n.emit("flatten", n.input(0), axis=axis), axis=1, log=log)
    n.finish("reshape", rows, n.emit("shape", n.input(0)), allowzero=True)


def _used(n: NodeView, first: int) -> bool:
    """Whether an output from the first one on is read."""
    return any(output and output in n.builder.consumed for output in n.outputs[first:])


def _batch_norm(n: NodeView) -> None:
    """The training form has the running statistics as outputs 1 and 2; before opset 14 those of the batch follow."""
    n.ignore("is_test")  # of opset 6, where outputs that are read tell the same
    if not n.attr_flag("spatial", True):
        n.refuse("spatial=0 (statistics per element); vkconv normalizes per channel")
    since = n.version >= _TRAINING_MODE_SINCE
    training = n.attr_flag("training_mode") if since else _used(n, 1)
    operands = [n.input(i) for i in range(5)]
    attrs = {"eps": n.attr_float("epsilon", 1e-5)}
    momentum = n.attr_float("momentum", 0.9)
    if training:
        n.only_outputs(3, "its outputs saved_mean or saved_var are used; vkconv makes the running statistics")
        n.finish("batch_norm_training", *operands, momentum=momentum, **attrs)
        return
    n.only_outputs(1, "its running statistics are used without training_mode=1, and then they do not change")
    n.finish("batch_norm", *operands, **attrs)


def _statistics_in_f32(n: NodeView) -> None:
    if n.attr_int("stash_type", 1) != 1:
        n.refuse(f"stash_type={n.attr_int('stash_type', 1)}; vkconv computes the statistics in float32")


def _layer_norm(n: NodeView) -> None:
    _statistics_in_f32(n)
    attrs: dict[str, AttrValue] = {"axis": n.attr_int("axis", -1), "eps": n.attr_float("epsilon", 1e-5)}
    if _used(n, 1):
        attrs["stats"] = True
    else:
        n.outputs = n.outputs[:1]
    bias = [n.input(2)] if n.has(2) else []
    n.finish("layer_norm", n.input(0), n.input(1), *bias, **attrs)


def _rms_norm(n: NodeView) -> None:
    _statistics_in_f32(n)
    n.finish("rms_norm", n.input(0), n.input(1), axis=n.attr_int("axis", -1), eps=n.attr_float("epsilon", 1e-5))


def _instance_norm(n: NodeView) -> None:
    n.finish("instance_norm", *(n.input(i) for i in range(3)), eps=n.attr_float("epsilon", 1e-5))


def _group_norm(n: NodeView) -> None:
    """Scale and bias are by group in opset 18, by channel from 21 on; the op takes either."""
    _statistics_in_f32(n)
    groups = n.attr_int("num_groups", 0)
    n.finish("group_norm", *(n.input(i) for i in range(3)), groups=groups, eps=n.attr_float("epsilon", 1e-5))


def _mean_variance_norm(n: NodeView) -> None:
    """(x - mean) / (deviation + 1e-9), the deviation by the differences, which do not cancel as squares do."""
    axes = n.attr_ints("axes", (0, 2, 3))
    mean = n.emit("reduce", n.input(0), op="mean", axes=axes, keepdims=True)
    apart = n.emit("sub", n.input(0), mean)
    variance = n.emit("reduce", n.emit("mul", apart, apart), op="mean", axes=axes, keepdims=True)
    deviation = n.emit("add", n.emit("sqrt", variance), n.number(1e-9, n.dtype(0)))
    n.finish("div", apart, deviation)


def _lp_norm(n: NodeView) -> None:
    """x over its 1- or 2-norm; 0 where that is 0."""
    p = n.attr_int("p", 2)
    if p not in (1, 2):
        n.refuse(f"p={p}; ONNX has 1 and 2")
    size = n.emit("reduce", n.input(0), op=f"l{p}", axes=(n.attr_int("axis", -1),), keepdims=True)
    zero, one = (n.number(value, n.dtype(0)) for value in (0.0, 1.0))
    n.finish("div", n.input(0), n.emit("where", n.emit("equal", size, zero), one, size))


RULES: dict[str, Rule] = {
    "BatchNormalization": _batch_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": partial(_softmax, True),
    "LpNormalization": _lp_norm,
    "MeanVarianceNormalization": _mean_variance_norm,
    "RMSNormalization": _rms_norm,
    "Softmax": partial(_softmax, False),
}
