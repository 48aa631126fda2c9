"""Import rules for pooling, its inverse, and the normalization that pools over channels."""

from functools import partial

from vkconv.core import DType
from vkconv.graph.ir import AttrValue
from vkconv.graph.onnx.elementwise import Rule
from vkconv.graph.onnx.view import NodeView
from vkconv.graph.onnx.windows import geometry, window


def _pool(kind: str, n: NodeView) -> None:
    kernel = n.attr_ints("kernel_shape")
    options: dict[str, AttrValue] = {"ceil_mode": n.attr_flag("ceil_mode")}
    if kind == "avg":
        options["count_include_pad"] = n.attr_flag("count_include_pad")
    if kind == "lp":
        options["norm"] = float(n.attr_int("p", 2))
    column_major = kind == "max" and n.attr_flag("storage_order")
    indices = len(n.outputs) > 1 and n.outputs[1] in n.builder.consumed
    if len(kernel) == 3:
        if indices:
            n.refuse("its output of indices is used with 3 spatial dimensions; vkconv has it for 1 and 2")
        _write_pool3d(n, kind, kernel, options)
        return
    attrs = window(n, len(kernel)) | options
    x, kernel = (n.input(0), kernel) if len(kernel) == 2 else (n.emit("unsqueeze", n.input(0), axes=(2,)), (1, *kernel))
    _write(n, 0, "pool2d", x, kind=kind, kernel=kernel, **attrs)
    if indices:
        _write(n, 1, "pool2d_argmax", x, kernel=kernel, column_major=column_major, **attrs)


def _write(n: NodeView, i: int, op: str, x: str, **attrs: AttrValue) -> None:
    """Output i, without the height of 1 that one spatial dimension got. Maxima of bytes are exact in floats."""
    given = n.dtype(0)
    if given in (DType.I8, DType.U8):
        made = n.emit(op, n.emit("cast", x, to=str(DType.F32)), **attrs)
        if len(n.attr_ints("kernel_shape")) != 2:
            made = n.emit("squeeze", made, axes=(2,))
        if i == 0:
            n.write(i, "cast", made, to=str(given))
        else:
            n.write(i, "identity", made)
        return
    if len(n.attr_ints("kernel_shape")) == 2:
        n.write(i, op, x, **attrs)
    else:
        n.write(i, "squeeze", n.emit(op, x, **attrs), axes=(2,))


def _write_pool3d(n: NodeView, kind: str, kernel: tuple[int, ...], options: dict[str, AttrValue]) -> None:
    """Planes first, then depth: maxima of maxima, averages of averages (a window's elements are a product of those
    along each axis, also at an edge), norms of norms."""
    strides, dilations, pads, auto_pad = geometry(n, 3)
    shared = options | {"kind": kind, "auto_pad": auto_pad}
    planes = n.emit(
        "pool2d",
        n.emit("merge", n.input(0), first=1, last=2),
        kernel=kernel[1:],
        stride=strides[1:],
        dilation=dilations[1:],
        padding=(*pads[1:3], *pads[4:]),
        **shared,
    )
    begin, minus_one = n.emit("shape", n.input(0), start=0, end=3), n.ints(-1)
    columns = n.emit("reshape", planes, n.emit("concat", begin, minus_one, axis=0))
    pooled = n.emit(
        "pool2d",
        columns,
        kernel=(kernel[0], 1),
        stride=(strides[0], 1),
        dilation=(dilations[0], 1),
        padding=(pads[0], 0, pads[3], 0),
        **shared,
    )
    end = n.emit("shape", planes, start=2, end=4)
    kept = n.emit("shape", pooled, start=0, end=3)
    n.write(0, "reshape", pooled, n.emit("concat", kept, end, axis=0), allowzero=True)


def _global_pool(op: str, n: NodeView) -> None:
    rank = n.need_rank(0)
    if rank < 3:
        n.refuse(f"its input has rank {rank}; pooling wants N, C and at least one spatial dimension")
    n.finish("reduce", n.input(0), op=op, axes=tuple(range(2, rank)), keepdims=True)


def _max_unpool(n: NodeView) -> None:
    """Zeros of the shape that was pooled, with the elements where the indices say; beyond it, zeros up to a given
    shape."""
    kernel = n.attr_ints("kernel_shape")
    strides, _, pads, _ = geometry(n, len(kernel))
    count = len(kernel)
    room = tuple(k - pads[i] - pads[i + count] for i, k in enumerate(kernel))
    spatial = n.emit("sub", n.emit("shape", n.input(0), start=2), n.ints(1))
    spatial = n.emit("add", n.emit("mul", spatial, n.ints(*strides)), n.ints(*room))
    shape = n.emit("concat", n.emit("shape", n.input(0), start=0, end=2), spatial, axis=0)
    zeros = n.emit("constant_of_shape", shape, dtype=str(n.dtype(0)))
    flat = [n.emit("merge", value, first=0, last=-1) for value in (zeros, n.input(1), n.input(0))]
    full = n.emit("scatter_elements", *flat, axis=0)
    if not n.has(2):
        n.finish("reshape", full, shape, allowzero=True)
        return
    beyond = n.emit("sub", n.input(2), shape)
    before = n.emit("sub", shape, shape)
    n.finish("pad", n.emit("reshape", full, shape, allowzero=True), n.emit("concat", before, beyond, axis=0))


def _lrn(n: NodeView) -> None:
    """x / (bias + alpha mean(x^2 over size channels around))^beta, where channels outside count as zeros."""
    size, dtype = n.attr_int("size", 1), n.dtype(0)
    alpha, beta, bias = n.attr_float("alpha", 1e-4), n.attr_float("beta", 0.75), n.attr_float("bias", 1.0)
    if size < 1:
        n.refuse(f"size={size}; it is at least 1")
    squares = n.emit("mul", n.input(0), n.input(0))
    lines = n.emit("unsqueeze", n.emit("merge", squares, first=2, last=-1), axes=(1,))
    before = (size - 1) // 2
    padding = (before, 0, size - 1 - before, 0)
    mean = n.emit("pool2d", lines, kind="avg", kernel=(size, 1), padding=padding, count_include_pad=True)
    mean = n.emit("reshape", mean, n.emit("shape", n.input(0)), allowzero=True)
    scaled = n.emit("add", n.emit("mul", mean, n.number(alpha, dtype)), n.number(bias, dtype))
    n.finish("div", n.input(0), n.emit("pow", scaled, n.number(beta, dtype)))


RULES: dict[str, Rule] = {
    "AveragePool": partial(_pool, "avg"),
    "GlobalAveragePool": partial(_global_pool, "mean"),
    "GlobalMaxPool": partial(_global_pool, "max"),
    "LRN": _lrn,
    "LpPool": partial(_pool, "lp"),
    "MaxPool": partial(_pool, "max"),
    "MaxUnpool": _max_unpool,
}
