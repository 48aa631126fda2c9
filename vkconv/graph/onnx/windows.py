"""Import rules for convolution and matrix products."""

import numpy as np

from vkconv.core import Array
from vkconv.graph.ir import AttrValue
from vkconv.graph.onnx.elementwise import Rule
from vkconv.graph.onnx.view import NodeView

# Behind the end of every axis.
_END = (1 << 63) - 1
AUTO_PAD = {"NOTSET": "explicit", "SAME_UPPER": "same_upper", "SAME_LOWER": "same_lower", "VALID": "valid"}


def window(n: NodeView, spatial: int) -> dict[str, AttrValue]:
    """stride, dilation, padding (t, l, b, r) and auto_pad of a window over 1 or 2 spatial dimensions.

    One spatial dimension is W of an image of height 1.
    """
    if spatial not in (1, 2):
        n.refuse(f"{spatial} spatial dimensions; vkconv has 1 and 2")
    strides, dilations, pads, auto_pad = geometry(n, spatial)
    if spatial == 1:
        strides, dilations, pads = (1, *strides), (1, *dilations), (0, pads[0], 0, pads[1])
    return {"stride": strides, "dilation": dilations, "padding": pads, "auto_pad": auto_pad}


def geometry(n: NodeView, spatial: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], str]:
    """strides, dilations, pads (all begins, then all ends) and auto_pad of a window over so many dimensions."""
    auto_pad = n.attr_str("auto_pad", "NOTSET")
    if auto_pad not in AUTO_PAD:
        n.refuse(f"auto_pad={auto_pad!r}; ONNX has {', '.join(AUTO_PAD)}")
    lengths = {"strides": spatial, "dilations": spatial, "pads": 2 * spatial}
    found = {name: n.attr_ints(name) or (int(name != "pads"),) * count for name, count in lengths.items()}
    for name, count in lengths.items():
        if len(found[name]) != count:
            n.refuse(f"{name}={found[name]} for {spatial} spatial dimensions; {count} numbers belong there")
    strides, dilations, pads = found["strides"], found["dilations"], found["pads"]
    if auto_pad != "NOTSET":
        pads = (0,) * (2 * spatial)
    return strides, dilations, pads, AUTO_PAD[auto_pad]


def _conv(n: NodeView) -> None:
    spatial = _spatial(n)
    if spatial == 3:
        _finish_conv3d(n)
    else:
        _finish_conv(n, "conv2d", spatial, window(n, spatial))


def _of_planes(
    n: NodeView, strides: tuple[int, ...], dilations: tuple[int, ...], pads: tuple[int, ...]
) -> dict[str, AttrValue]:
    """The attributes of a three-dimensional convolution that its planes have."""
    groups, padding = n.attr_int("group", 1), (*pads[1:3], *pads[4:])
    return {"groups": groups, "stride": strides[1:], "dilation": dilations[1:], "padding": padding}


def _finish_conv3d(n: NodeView) -> None:
    """A convolution of planes whose channels are those of all planes that a window spans."""
    strides, dilations, pads, auto_pad = geometry(n, 3)
    depth, step, dilation = _depth3d(n), strides[0], dilations[0]
    x = n.input(0)
    if auto_pad in ("same_upper", "same_lower"):
        x = n.emit("pad", x, _same_depth(n, step, (depth - 1) * dilation + 1, auto_pad == "same_upper"))
    else:
        reach, there = (depth - 1) * dilation + 1, _planes(n)
        if there is not None and there + pads[0] + pads[3] < reach:
            n.refuse(f"its kernel reaches over {reach} planes, and with the pads there are {there + pads[0] + pads[3]}")
        if pads[0] or pads[3]:
            x = n.emit("pad", x, pads=(0, 0, pads[0], 0, 0, 0, 0, pads[3], 0, 0))
    # Plane k of every window: as many fit as the last one leaves room for behind it.
    planes = []
    for k in range(depth):
        behind = (depth - 1 - k) * dilation
        end = -behind if behind else _END
        plane = n.emit("slice", x, starts=(k * dilation,), ends=(end,), axes=(2,), steps=(step,))
        planes.append(n.emit("unsqueeze", plane, axes=(2,)))
    spanned = n.emit("concat", *planes, axis=2) if depth > 1 else planes[0]  # n, c, k, d, h, w
    by_plane = n.emit("transpose", spanned, perm=(0, 3, 1, 2, 4, 5))
    batch = n.emit("merge", n.emit("merge", by_plane, first=2, last=3), first=0, last=1)
    y = n.emit(
        "conv2d",
        batch,
        n.emit("merge", n.input(1), first=1, last=2),
        *([n.input(2)] if n.has(2) else []),
        **_of_planes(n, strides, dilations, pads),
        auto_pad=auto_pad,
    )
    split = n.emit("shape", by_plane, start=0, end=2)
    shape = n.emit("concat", split, n.emit("shape", y, start=1), axis=0)
    n.finish("transpose", n.emit("reshape", y, shape, allowzero=True), perm=(0, 2, 1, 3, 4))


def _same_depth(n: NodeView, step: int, reach: int, upper: bool) -> str:
    """The pads of a volume whose windows, which reach over so many planes, are to be ceil(planes / step)."""
    planes = n.emit("shape", n.input(0), start=2, end=3)
    last = n.emit("mul", n.emit("div", n.emit("sub", planes, n.ints(1)), n.ints(step)), n.ints(step))
    total = n.emit("maximum", n.emit("sub", n.emit("add", last, n.ints(reach)), planes), n.ints(0))
    less = n.emit("div", total, n.ints(2))
    more = n.emit("sub", total, less)
    begin, end = (less, more) if upper else (more, less)
    none = n.ints(0, 0)
    return n.emit("concat", none, begin, none, none, end, none, axis=0)


def _conv_transpose(n: NodeView) -> None:
    spatial = _spatial(n)
    if spatial == 3:
        _finish_conv_transpose3d(n)
        return
    attrs = window(n, spatial)
    for name, fill in (("output_padding", 0), ("output_shape", 1)):
        values = n.attr_ints(name)
        if len(values) not in (0, spatial):
            n.refuse(f"{name}={values} for {spatial} spatial dimensions; {spatial} numbers belong there")
        if values:
            attrs[name] = values if spatial == 2 else (fill, *values)
    if "output_shape" in attrs:  # ONNX ignores pads beside it
        attrs["padding"] = (0, 0, 0, 0)
    _finish_conv(n, "conv_transpose2d", spatial, attrs)


def _finish_conv_transpose3d(n: NodeView) -> None:
    """A transposed convolution of planes that makes what every tap of the depth adds, and the sum of these where they
    fall, which is that of col2im."""
    strides, dilations, pads, auto_pad = geometry(n, 3)
    extra, depth = n.attr_ints("output_padding") or (0, 0, 0), _depth3d(n)
    sizes = n.attr_ints("output_shape")
    for name, values in (("output_padding", extra), ("output_shape", sizes)):
        if len(values) not in (0, 3):
            n.refuse(f"{name}={values} for 3 spatial dimensions; 3 numbers belong there")
    more = extra[0]
    if sizes or auto_pad in ("same_upper", "same_lower"):  # ONNX ignores pads beside an output_shape
        reach, most = (depth - 1) * dilations[0] + 1 + more, max(strides[0], dilations[0]) - more
        begin, end, beyond = _transposed_depth(n, strides[0], reach, most, auto_pad)
        pads, more = (begin, 0, 0, end, 0, 0), more + beyond
    planes = n.emit("merge", n.emit("transpose", n.input(0), perm=(0, 2, 1, 3, 4)), first=0, last=1)
    made = n.emit(
        "conv_transpose2d",
        planes,
        n.emit("merge", n.input(1), first=1, last=2),
        **_of_planes(n, strides, dilations, pads),
        output_padding=extra[1:],
        output_shape=sizes[1:],
        auto_pad=auto_pad,
    )
    batch, deep = n.emit("shape", n.input(0), start=0, end=1), n.emit("shape", n.input(0), start=2, end=3)
    image = n.emit("shape", made, start=2)
    flat = n.emit("merge", made, first=2, last=3)
    parts = n.emit("concat", batch, deep, n.ints(-1, depth), n.emit("shape", flat, start=2), axis=0)
    apart = n.emit("reshape", flat, parts, allowzero=True)  # n, d, m, k, h w
    columns = n.emit("merge", n.emit("transpose", apart, perm=(0, 2, 4, 3, 1)), first=1, last=3)
    room = dilations[0] * (depth - 1) + 1 - pads[0] - pads[3] + more - strides[0]
    out = n.emit("add", n.emit("mul", deep, n.ints(strides[0])), n.ints(room))
    summed = n.emit(
        "col2im",
        columns,
        out,
        block=(depth,),
        stride=strides[:1],
        dilation=dilations[:1],
        padding=(pads[0], pads[3]),
    )
    shape = n.emit("concat", batch, n.ints(-1), image, n.emit("shape", summed, start=2), axis=0)
    y = n.emit("reshape", summed, shape, allowzero=True)
    if n.has(2):
        y = n.emit("add", y, n.emit("unsqueeze", n.input(2), axes=(1, 2, 3)))
    n.finish("transpose", y, perm=(0, 1, 4, 2, 3))


def _transposed_depth(n: NodeView, step: int, reach: int, most: int, auto_pad: str) -> tuple[int, int, int]:
    """How many planes a transposed convolution, whose windows reach over so many, cuts off before and behind, and how
    many fewer than ``most`` it adds there, as output_padding does: by its output_shape, or for planes times step."""
    shape, total = n.attr_ints("output_shape"), reach - step
    if shape:
        planes = _planes(n)
        if planes is None:
            n.refuse(f"output_shape={shape} of a depth that the model leaves open; give its input a shape, or it pads")
        total += planes * step - shape[0]
    if shape and total < 0 and -total >= most:
        beyond = f"{shape[0]} planes, and the input reaches {shape[0] + total}"
        n.refuse(f"output_shape={shape}: {beyond}; up to {most - 1} more can be")
    begin = max(total, 0) // 2 if auto_pad == "same_upper" else -(-max(total, 0) // 2)
    return begin, max(total, 0) - begin, max(-total, 0)


def _planes(n: NodeView) -> int | None:
    """How many planes the volume has, where the model tells."""
    dims = n.dims(0)
    return dims[2] if len(dims) == 5 else None


def _depth3d(n: NodeView) -> int:
    """Taps along the first of 3 spatial dimensions, which become nodes."""
    kernel, dims = n.attr_ints("kernel_shape"), n.dims(1)
    depth = kernel[0] if len(kernel) == 3 else dims[2] if not kernel and len(dims) == 5 else None
    if depth is None:
        n.refuse("neither it nor its weights tell the depth of the kernel, which vkconv needs for 3 spatial dimensions")
    return depth


def _spatial(n: NodeView) -> int:
    """Spatial dimensions of a convolution; refuses a kernel_shape that is not that of the weights."""
    kernel, weights, rank = n.attr_ints("kernel_shape"), n.const(1), n.rank(1)
    if weights is not None and kernel and tuple(weights.shape[2:]) != kernel:
        n.refuse(f"kernel_shape={kernel} but the weights have shape {weights.shape}")
    return rank - 2 if rank is not None else len(kernel) or n.need_rank(0) - 2


def _finish_conv(n: NodeView, op: str, spatial: int, attrs: dict[str, AttrValue]) -> None:
    attrs |= {"groups": n.attr_int("group", 1)}
    bias = [n.input(2)] if n.has(2) else []
    if spatial == 2:
        n.finish(op, n.input(0), n.input(1), *bias, **attrs)
        return
    weights = n.const(1)
    if weights is None:
        w = n.emit("unsqueeze", n.input(1), axes=(2,))
    else:
        w = n.builder.constant(f"{n.input(1)}/2d", np.expand_dims(weights, 2))
    y = n.emit(op, n.emit("unsqueeze", n.input(0), axes=(2,)), w, *bias, **attrs)
    n.finish("squeeze", y, axes=(2,))


def _matmul(n: NodeView) -> None:
    """Rank 1 operands are a row on the left, a column on the right, and the added dimension goes again."""
    a, b = n.input(0), n.input(1)
    gone: list[int] = []
    if n.rank(0) == 1:
        a = n.emit("unsqueeze", a, axes=(0,))
        gone.append(-2)
    if n.rank(1) == 1:
        b = n.emit("unsqueeze", b, axes=(1,))
        gone.append(-1)
    if n.dtype(0).is_float and not gone:
        n.finish("matmul", a, b)
        return
    y = n.emit("matmul", a, b) if n.dtype(0).is_float else _integer_product(n, a, b)
    n.finish("squeeze" if gone else "identity", y, **({"axes": tuple(gone)} if gone else {}))


def _integer_product(n: NodeView, a: str, b: str) -> str:
    """A product of matrices of integers: all m x k x n products first, then their sums, which wrap."""
    products = n.emit("mul", n.emit("unsqueeze", a, axes=(-1,)), n.emit("unsqueeze", b, axes=(-3,)))
    return n.emit("reduce", products, op="sum", axes=(-2,), keepdims=False)


def _gemm(n: NodeView) -> None:
    """alpha * A' * B' + beta * C; a C that is one row becomes the bias, any other is added."""
    for i, matrix in enumerate("AB"):
        if n.rank(i) not in (None, 2):
            n.refuse(f"{matrix} has rank {n.rank(i)}; it takes matrices, of rank 2: flatten it before, or use MatMul")
    n.ignore("broadcast")  # what C of opset 6 needs to be added as it is from then on
    alpha, beta = n.attr_float("alpha", 1.0), n.attr_float("beta", 1.0)
    if not n.dtype(0).is_float:
        _integer_gemm(n, alpha, beta)
        return
    attrs: dict[str, AttrValue] = {"trans_a": n.attr_flag("transA"), "trans_b": n.attr_flag("transB")}
    if alpha != 1.0:
        attrs["alpha"] = alpha
    if not n.has(2) or beta == 0.0:
        n.finish("matmul", n.input(0), n.input(1), **attrs)
        return
    c = n.const(2)
    if c is not None and _is_row(c, n.const(1), bool(attrs["trans_b"])):
        row = n.input(2) if c.ndim == 1 else n.number(c.reshape(-1), n.dtype(2))
        n.finish("matmul", n.input(0), n.input(1), row, **attrs, **({} if beta == 1.0 else {"beta": beta}))
        return
    scaled = n.input(2) if beta == 1.0 else n.emit("mul", n.input(2), n.number(beta, n.dtype(2)))
    n.finish("add", n.emit("matmul", n.input(0), n.input(1), **attrs), scaled)


def _integer_gemm(n: NodeView, alpha: float, beta: float) -> None:
    if alpha != 1.0 or beta not in (0.0, 1.0):
        n.refuse(f"alpha {alpha:g} and beta {beta:g} of integers; they take alpha 1, and beta 0 or 1")
    turned = (n.attr_flag("transA"), n.attr_flag("transB"))
    a, b = (n.emit("transpose", n.input(i), perm=(1, 0)) if turned[i] else n.input(i) for i in (0, 1))
    y = _integer_product(n, a, b)
    n.finish("add", y, n.input(2)) if n.has(2) and beta else n.finish("identity", y)


def _is_row(c: Array, b: Array | None, trans_b: bool) -> bool:
    """Whether C holds one number per column of the product, so that no broadcasting along n is left."""
    if c.ndim not in (1, 2) or c.size != c.shape[-1]:
        return False
    return c.size > 1 or (b is not None and b.ndim == 2 and b.shape[0 if trans_b else 1] == 1)


RULES: dict[str, Rule] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MatMul": _matmul,
    "Gemm": _gemm,
}
