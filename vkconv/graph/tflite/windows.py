"""Import rules for convolutions, products, pooling and resampling: what vkconv has with channels first."""

from functools import partial

import numpy as np

from vkconv.core import Array, DType
from vkconv.graph.ir import AttrValue
from vkconv.graph.tflite import quantized
from vkconv.graph.tflite.reader import words
from vkconv.graph.tflite.view import OpView, Rule

_SAME = 0  # of the schema's Padding; VALID is 1
# (output, height, width, input) to (output, input, height, width), and of one multiplier for each input channel.
_FROM_OHWI, _FROM_1HWO = (0, 3, 1, 2), (3, 0, 1, 2)


def _window(n: OpView) -> dict[str, AttrValue]:
    """stride and padding, dilation where the operator has one."""
    attrs: dict[str, AttrValue] = {
        "stride": (n.option("StrideH", 1), n.option("StrideW", 1)),
        "auto_pad": _auto_pad(n, n.option("Padding")),
    }
    if hasattr(n.op.options, "DilationHFactor"):
        attrs["dilation"] = (n.option("DilationHFactor"), n.option("DilationWFactor"))
    return attrs


def _auto_pad(n: OpView, padding: int) -> str:
    if padding not in (_SAME, 1):
        n.refuse(f"padding number {padding}; the schema has SAME (0) and VALID (1)")
    return "same_upper" if padding == _SAME else "valid"


def _conv(n: OpView) -> None:
    n.need_rank(0, 4)
    n.need_rank(1, 4)
    channels, each = n.tensor(0).dims[3], n.tensor(1).dims[3]
    groups = channels // each if channels and each and channels % each == 0 else 1
    _convolved(n, _FROM_OHWI, {**_window(n), "groups": groups})


def _depthwise(n: OpView) -> None:
    n.need_rank(0, 4)
    n.need_rank(1, 4)
    channels = n.tensor(0).dims[3]
    if channels is None:
        n.refuse("the channels of its input are open; convert the model with a fixed input shape")
    _convolved(n, _FROM_1HWO, {**_window(n), "groups": channels})


def _convolved(n: OpView, weights: tuple[int, ...], attrs: dict[str, AttrValue]) -> None:
    if quantized.conv(n, weights, attrs):
        return
    bias = [n.x(2)] if n.has(2) else []
    y = n.emit("conv2d", n.first(n.x(0)), n.permuted(n.x(1), weights), *bias, **attrs)
    n.finish(n.last(n.fused(y)))


def _transpose_conv(n: OpView) -> None:
    """Operands: output shape, weights (output, height, width, input), input, bias."""
    bias = [n.x(3)] if n.has(3) else []
    given = n.const(0) is not None
    size = n.ints(0, "output shape")[1:3] if given else tuple(d or 0 for d in n.output().dims[1:3])
    _transposed(n, n.x(2), n.x(1), bias, _window(n), size)


def _mediapipe_transpose_conv(n: OpView) -> None:
    """MediaPipe's own: input, weights, bias; a C struct of padding (1 SAME, 2 VALID) and strides."""
    fields = list(words(n.op.custom or b""))
    if len(fields) < 3 or fields[0] not in (1, 2) or min(fields[1:3]) < 1:
        n.refuse("its options are not those of MediaPipe's operator")
    attrs: dict[str, AttrValue] = {
        "stride": (fields[2], fields[1]),
        "auto_pad": "same_upper" if fields[0] == 1 else "valid",
    }
    size = tuple(d or 0 for d in n.output().dims[1:3])
    _transposed(n, n.x(0), n.x(1), [n.x(2)] if n.has(2) else [], attrs, size)


def _transposed(n: OpView, x: str, w: str, bias: list[str], attrs: dict[str, AttrValue], size: tuple[int, ...]) -> None:
    if attrs["auto_pad"] == "same_upper" or min(size, default=0) > 0:
        if min(size, default=0) < 1:
            n.refuse("its output size is open; convert the model with a fixed input shape")
        # Without padding the output may be larger than what the input reaches, never smaller.
        attrs |= {"output_shape": size, "auto_pad": "same_upper"}
    y = n.emit("conv_transpose2d", n.first(x), n.permuted(w, _FROM_1HWO), *bias, **attrs)
    n.finish(n.last(n.fused(y)))


def _fully_connected(n: OpView) -> None:
    """x W' + b, where x is taken for rows as long as those of W."""
    n.need_rank(1, 2)
    if n.option("WeightsFormat"):
        n.refuse("its weights are shuffled for one CPU; convert the model again without that")
    depth, keeps = n.tensor(1).dims[1], bool(n.option("KeepNumDims", False))
    as_rows = n.rank(0) != 2 if not keeps else n.rank(0) < 2
    rows = (lambda value: n.emit("reshape", value, shape=(-1, depth or 1))) if as_rows else (lambda value: value)
    if quantized.fully_connected(n, rows, keeps):
        return
    bias = [n.x(2)] if n.has(2) else []
    n.finish(n.fused(n.emit("matmul", rows(n.x(0)), n.x(1), *bias, trans_b=True)))


def _batch_matmul(n: OpView) -> None:
    if n.rank(0) < 2 or n.rank(1) < 2:
        n.refuse("an operand is a vector; vkconv has products of matrices")
    flags = {"trans_a": bool(n.option("AdjX", False)), "trans_b": bool(n.option("AdjY", False))}
    n.finish(n.emit("matmul", n.x(0), n.x(1), **flags))


def _pool(kind: str, n: OpView) -> None:
    n.need_rank(0, 4)
    kernel = (n.option("FilterHeight", 1), n.option("FilterWidth", 1))
    attrs: dict[str, AttrValue] = {"norm": 2.0} if kind == "lp" else {}
    y = n.emit("pool2d", n.first(n.x(0)), kind=kind, kernel=kernel, **_window(n), **attrs)
    if kind == "lp":  # L2_POOL is the root of the mean of squares
        y = n.emit("mul", y, n.number(1 / np.sqrt(kernel[0] * kernel[1]), DType.F32))
    n.finish(n.last(n.fused(y)))


def _l2_pool(n: OpView) -> None:
    if n.option("Padding") == _SAME:
        n.refuse("padding SAME, where the mean is of fewer elements at an edge; vkconv has VALID")
    _pool("lp", n)


def _resize(mode: str, n: OpView) -> None:
    n.need_rank(0, 4)
    aligned, half = bool(n.option("AlignCorners", False)), bool(n.option("HalfPixelCenters", False))
    coordinate = "align_corners" if aligned else "half_pixel" if half else "asymmetric"
    attrs: dict[str, AttrValue] = {"mode": mode, "coordinate": coordinate}
    if mode == "nearest":
        attrs["nearest"] = "round_prefer_ceil" if aligned or half else "floor"
    x = n.first(n.x(0))
    if n.const(1) is not None:
        y = n.emit("resize", x, axes=(2, 3), sizes=n.ints(1, "sizes"), **attrs)
    else:
        y = n.emit("resize", x, n.emit("cast", n.stored(1), to="i64"), axes=(2, 3), **attrs)
    n.finish(n.last(y))


def _blocks(op: str, n: OpView) -> None:
    n.need_rank(0, 4)
    n.finish(n.last(n.emit(op, n.first(n.x(0)), block=n.option("BlockSize", 1))))


def _local_response(n: OpView) -> None:
    """x / (bias + alpha sum(x^2 over 2 radius + 1 channels around))^beta."""
    n.need_rank(0, 4)
    radius, alpha = n.option("Radius"), n.option("Alpha", 0.0)
    size = 2 * radius + 1
    x = n.x(0)
    # A mean over a window that counts what lies outside is the sum by its size.
    lines = n.emit("unsqueeze", n.emit("merge", n.emit("mul", x, x), first=0, last=2), axes=(0, 1))
    pads = (0, radius, 0, radius)
    mean = n.emit("pool2d", lines, kind="avg", kernel=(1, size), padding=pads, count_include_pad=True)
    mean = n.emit("reshape", mean, n.emit("shape", x))
    scaled = n.emit("mul", mean, n.number(alpha * size, DType.F32))
    base = n.emit("add", scaled, n.number(n.option("Bias", 0.0), DType.F32))
    n.finish(n.emit("div", x, n.emit("pow", base, n.number(n.option("Beta", 0.0), DType.F32))))


def _block_shape(n: OpView, i: int) -> tuple[tuple[int, int], Array]:
    n.need_rank(0, 4)
    block = n.ints(1, "block sizes")
    edges = np.asarray(n.ints(i, "paddings or crops"))
    if len(block) != 2 or edges.size != 4:
        n.refuse(f"{len(block)} spatial dimensions; vkconv has 2")
    return (block[0], block[1]), edges.reshape(2, 2)


def _space_to_batch(n: OpView) -> None:
    """Pixels of a block become images of the batch: (N, H, W, C) to (block N, H / block, W / block, C)."""
    (bh, bw), edges = _block_shape(n, 2)
    (top, bottom), (left, right) = edges.tolist()
    x = n.emit("pad", n.x(0), pads=(0, top, left, 0, 0, bottom, right, 0)) if edges.any() else n.x(0)
    _, h, w, c = n.output().dims
    if h is None or w is None or c is None:
        n.refuse("its sizes are open; convert the model with a fixed input shape")
    parts = n.emit("reshape", x, shape=(-1, h, bh, w, bw, c))
    n.finish(n.emit("reshape", n.emit("transpose", parts, perm=(2, 4, 0, 1, 3, 5)), shape=(-1, h, w, c)))


def _batch_to_space(n: OpView) -> None:
    (bh, bw), edges = _block_shape(n, 2)
    (top, bottom), (left, right) = edges.tolist()
    _, h, w, c = n.tensor(0).dims
    if h is None or w is None or c is None:
        n.refuse("its sizes are open; convert the model with a fixed input shape")
    parts = n.emit("reshape", n.x(0), shape=(bh, bw, -1, h, w, c))
    y = n.emit("reshape", n.emit("transpose", parts, perm=(2, 3, 0, 4, 1, 5)), shape=(-1, h * bh, w * bw, c))
    if edges.any():
        y = n.emit("slice", y, starts=(top, left), ends=(h * bh - bottom, w * bw - right), axes=(1, 2))
    n.finish(y)


RULES: dict[str, Rule] = {
    "AVERAGE_POOL_2D": partial(_pool, "avg"),
    "BATCH_MATMUL": _batch_matmul,
    "BATCH_TO_SPACE_ND": _batch_to_space,
    "CONV_2D": _conv,
    "DEPTHWISE_CONV_2D": _depthwise,
    "DEPTH_TO_SPACE": partial(_blocks, "depth_to_space"),
    "FULLY_CONNECTED": _fully_connected,
    "L2_POOL_2D": _l2_pool,
    "LOCAL_RESPONSE_NORMALIZATION": _local_response,
    "MAX_POOL_2D": partial(_pool, "max"),
    "RESIZE_BILINEAR": partial(_resize, "linear"),
    "RESIZE_NEAREST_NEIGHBOR": partial(_resize, "nearest"),
    "SPACE_TO_BATCH_ND": _space_to_batch,
    "SPACE_TO_DEPTH": partial(_blocks, "space_to_depth"),
    "TRANSPOSE_CONV": _transpose_conv,
    "custom Convolution2DTransposeBias": _mediapipe_transpose_conv,
}
