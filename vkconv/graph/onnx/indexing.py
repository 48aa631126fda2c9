"""Import rules for ops that pick, place, order or mask elements by index."""

from functools import partial

from vkconv.core import DType
from vkconv.graph.ir import AttrValue
from vkconv.graph.onnx.elementwise import Rule
from vkconv.graph.onnx.proto import dtype_of
from vkconv.graph.onnx.view import NodeView

_MOST = (1 << 63) - 1


def _gather_elements(n: NodeView) -> None:
    n.finish("gather_elements", n.input(0), n.input(1), axis=n.attr_int("axis", 0))


def _gather_nd(n: NodeView) -> None:
    n.finish("gather_nd", n.input(0), n.input(1), batch_dims=n.attr_int("batch_dims", 0))


def _nonzero(n: NodeView) -> None:
    places, count = n.emit_counted("nonzero", _numbers(n, 0))
    n.finish("slice", places, n.ints(0), count, n.ints(1))


def _compress(n: NodeView) -> None:
    """Slices of the input, or elements of it in a row, where the condition holds. It may be shorter than the axis."""
    x, axis = n.input(0), n.attr_int("axis", 0)
    if not n.has_attr("axis"):
        x = n.emit("reshape", x, n.ints(-1))
    places, count = n.emit_counted("nonzero", _numbers(n, 1))
    taken = n.emit("slice", places, n.ints(0), count, n.ints(1))
    n.finish("gather", x, n.emit("squeeze", taken, axes=(0,)), axis=axis)


def _numbers(n: NodeView, i: int) -> str:
    """An input in a type of which nonzero has elements."""
    dtype = n.dtype(i)
    small = not dtype.is_float and dtype not in (DType.I32, DType.I64)
    return n.emit("cast", n.input(i), to="i32") if small else n.input(i)


def _non_max_suppression(n: NodeView) -> None:
    operands: list[str] = []
    attrs: dict[str, AttrValue] = {"centers": n.attr_flag("center_point_box")}
    for name, i in (("max_boxes", 2), ("iou_threshold", 3), ("score_threshold", 4)):
        value = n.const_scalar(i) if n.has(i) else None
        operands.append(n.input(i) if value is None else "")
        if value is not None:
            # The largest i64, as torch writes it, is one more as a float.
            attrs[name] = min(int(value), _MOST) if name == "max_boxes" else value
    while operands and not operands[-1]:
        operands.pop()
    rows, count = n.emit_counted("non_max_suppression", n.input(0), n.input(1), *operands, **attrs)
    n.finish("slice", rows, n.ints(0), count, n.ints(0))


def _scatter_elements(n: NodeView) -> None:
    n.finish("scatter_elements", *_scattered(n), axis=n.attr_int("axis", 0), reduction=n.attr_str("reduction", "none"))


def _scatter_nd(n: NodeView) -> None:
    n.finish("scatter_nd", *_scattered(n), reduction=n.attr_str("reduction", "none"))


def _scattered(n: NodeView) -> tuple[str, str, str]:
    return n.input(0), n.input(1), n.input(2)


def _tensor_scatter(n: NodeView) -> None:
    mode, rank, axis = n.attr_str("mode", "linear"), n.need_rank(0), n.attr_int("axis", -2)
    if mode not in ("linear", "circular"):
        n.refuse(f"mode={mode!r}; ONNX has linear and circular")
    if not -rank <= axis < rank or axis % rank == 0:
        n.refuse(f"axis {axis} of a cache of {rank} dimensions, the first of which is the batch")
    first = n.input(2) if n.has(2) else n.ints(0)
    n.finish("tensor_scatter", n.input(0), n.input(1), first, axis=axis % rank, circular=mode == "circular")


def _one_hot(n: NodeView) -> None:
    inputs, attrs = n.host("depth", depth=1)
    n.finish("one_hot", n.input(0), n.input(2), *inputs, axis=n.attr_int("axis", -1), **attrs)


def _topk(n: NodeView) -> None:
    n.ignore("sorted")  # in order is one of the orders that sorted=0 allows
    inputs, attrs = n.host(k=1) if n.version >= 10 else ([], {"k": n.attr_int("k", 0)})
    n.finish("topk", n.input(0), *inputs, axis=n.attr_int("axis", -1), largest=n.attr_flag("largest", True), **attrs)


def _reverse_sequence(n: NodeView) -> None:
    axes = {"time_axis": n.attr_int("time_axis", 0), "batch_axis": n.attr_int("batch_axis", 1)}
    n.finish("reverse_sequence", n.input(0), n.input(1), **axes)


def _trilu(n: NodeView) -> None:
    inputs, attrs = n.host(k=1)
    n.finish("trilu", n.input(0), *inputs, upper=n.attr_flag("upper", True), **attrs)


def _cumulative(op: str, n: NodeView) -> None:
    inputs, attrs = n.host(axis=1)
    flags = {name: n.attr_flag(name) for name in ("exclusive", "reverse")}
    n.finish("cumulative", n.input(0), *inputs, op=op, **flags, **attrs)


def _hardmax(n: NodeView) -> None:
    """Before opset 13 the input counts as a matrix: every dimension from axis on is one row."""
    if n.version >= 13:
        n.finish("hardmax", n.input(0), axis=n.attr_int("axis", -1))
        return
    rows = n.emit("hardmax", n.emit("flatten", n.input(0), axis=n.attr_int("axis", 1)), axis=1)
    n.finish("reshape", rows, n.emit("shape", n.input(0)), allowzero=True)


def _eye_like(n: NodeView) -> None:
    dtype = dtype_of(n.attr_int("dtype", 0), "makes") if n.has_attr("dtype") else n.dtype(0)
    n.finish("eye_like", n.input(0), k=n.attr_int("k", 0), dtype=str(dtype))


def _blocks(op: str, n: NodeView) -> None:
    n.finish(op, n.input(0), block=n.attr_int("blocksize", 0), mode=n.attr_str("mode", "DCR").lower())


def _center_crop_pad(n: NodeView) -> None:
    inputs, attrs = n.host(shape=1)
    n.finish("center_crop_pad", n.input(0), *inputs, axes=n.attr_ints("axes"), **attrs)


def _bitcast(n: NodeView) -> None:
    n.finish("bitcast", n.input(0), to=str(dtype_of(n.attr_int("to", 0), "makes")))


RULES: dict[str, Rule] = {
    "BitCast": _bitcast,
    "CenterCropPad": _center_crop_pad,
    "Compress": _compress,
    "CumProd": partial(_cumulative, "prod"),
    "CumSum": partial(_cumulative, "sum"),
    "DepthToSpace": partial(_blocks, "depth_to_space"),
    "EyeLike": _eye_like,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Hardmax": _hardmax,
    "NonMaxSuppression": _non_max_suppression,
    "NonZero": _nonzero,
    "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "SpaceToDepth": partial(_blocks, "space_to_depth"),
    "TensorScatter": _tensor_scatter,
    "TopK": _topk,
    "Trilu": _trilu,
}
