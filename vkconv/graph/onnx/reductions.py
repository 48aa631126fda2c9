"""Import rules for reductions: Reduce*, ArgMax and ArgMin."""

from functools import partial

from vkconv.core import DType
from vkconv.graph.ir import AttrValue
from vkconv.graph.onnx.elementwise import Rule
from vkconv.graph.onnx.view import NodeView

REDUCE = {
    "ReduceL1": "l1",
    "ReduceL2": "l2",
    "ReduceLogSum": "log_sum",
    "ReduceLogSumExp": "log_sum_exp",
    "ReduceMax": "max",
    "ReduceMean": "mean",
    "ReduceMin": "min",
    "ReduceProd": "prod",
    "ReduceSum": "sum",
    "ReduceSumSquare": "sum_square",
}
# What is left of a function where nothing is reduced: log(exp(x)) and sqrt(x * x) are no more than that.
_OF_ONE = {"l1": "abs", "l2": "abs", "log_sum": "log", "sum_square": "mul"}
# Of 0 and 1: any, and all; of nothing they are 0 and 1 as ONNX has it.
_OF_BOOLS = {"max": "sum", "min": "prod"}


def _reduce(op: str, n: NodeView) -> None:
    """Axes moved from an attribute to an input with opset 18, for the sum with 13."""
    keepdims = n.attr_flag("keepdims", True)
    attrs: dict[str, AttrValue] = {}
    inputs: list[str] = []
    if n.version < (13 if op == "sum" else 18):
        if n.has_attr("axes"):
            attrs["axes"] = n.attr_ints("axes")
    else:
        inputs, attrs = n.host(axes=1)
        if n.attr_flag("noop_with_empty_axes"):
            if inputs:
                _over_axes_or_none(op, n, keepdims)
                return
            if not attrs.get("axes"):
                _of_one(op, n)
                return
    if op in _OF_BOOLS and n.version >= 20 and n.dtype(0) is DType.BOOL:
        whole = n.emit("cast", n.input(0), to="i32")
        made = n.emit("reduce", whole, *inputs, op=_OF_BOOLS[op], keepdims=keepdims, **attrs)
        n.finish("cast", made, to="bool")
        return
    n.finish("reduce", n.input(0), *inputs, op=op, keepdims=keepdims, **attrs)


def _over_axes_or_none(op: str, n: NodeView, keepdims: bool) -> None:
    """Axes that may turn out to be none: a last dimension of 1 is reduced with them, so that there always is one."""
    rank = n.need_rank(0)
    counted = n.emit("mod", n.input(1), n.ints(rank + (rank == 0)))
    axes = n.emit("concat", counted, n.ints(rank), axis=0)
    x = n.emit("unsqueeze", n.input(0), axes=(-1,))
    if keepdims:
        n.finish("squeeze", n.emit("reduce", x, axes, op=op, keepdims=True), axes=(-1,))
    else:
        n.finish("reduce", x, axes, op=op, keepdims=False)


def _of_one(op: str, n: NodeView) -> None:
    unary = _OF_ONE.get(op, "identity")
    n.finish(unary, *([n.input(0)] * (2 if unary == "mul" else 1)))


def _arg_reduce(op: str, n: NodeView) -> None:
    n.finish(
        "arg_reduce",
        n.input(0),
        op=op,
        axis=n.attr_int("axis", 0),
        keepdims=n.attr_flag("keepdims", True),
        select_last=n.attr_flag("select_last_index"),
        dtype=str(DType.I64),
    )


RULES: dict[str, Rule] = {
    **{name: partial(_reduce, op) for name, op in REDUCE.items()},
    "ArgMax": partial(_arg_reduce, "max"),
    "ArgMin": partial(_arg_reduce, "min"),
}
