"""Import rules for convolutions, products, pooling, normalization and resampling."""

from functools import partial

from vkconv.core import DType
from vkconv.graph.aten.view import CallView, Rule
from vkconv.graph.ir import AttrValue


def _convolution(n: CallView) -> None:
    n.finish(convolved(n))


def convolved(n: CallView) -> str:
    """Arguments: x, w, bias, stride, padding, dilation, transposed, output padding, groups."""
    spatial = n.rank(1) - 2
    if spatial not in (1, 2) or n.rank(0) != n.rank(1):
        n.refuse(f"{spatial} spatial dimensions; vkconv has 1 and 2")
    stride, pads, dilation = (n.ints(i, spatial) for i in (3, 4, 5))
    flat = spatial == 1
    x, w = n.x(0), n.x(1)
    if flat:
        x, w = (n.emit("unsqueeze", v, axes=(2,)) for v in (x, w))
        stride, pads, dilation = (1, *stride), (0, *pads), (1, *dilation)
    attrs: dict[str, AttrValue] = {"stride": stride, "dilation": dilation, "padding": (*pads, *pads)}
    attrs["groups"] = n.int_of(n.arg(8, 1))
    op = "conv2d"
    if n.arg(6, False):
        op, extra = "conv_transpose2d", n.ints(7, spatial)
        attrs["output_padding"] = (0, *extra) if flat else extra
    y = n.emit(op, x, w, *([n.x(2)] if n.has(2) else []), **attrs)
    return n.emit("squeeze", y, axes=(2,)) if flat else y


def _addmm(n: CallView) -> None:
    """beta bias + alpha a b: a bias of one row is that of a matmul."""
    alpha, beta = float(n.option("alpha", 4, 1)), float(n.option("beta", 3, 1))
    attrs: dict[str, AttrValue] = {"alpha": alpha} if alpha != 1.0 else {}
    columns = n.meta(2).shape[1]
    if n.rank(0) == 1 and n.meta(0).shape[0] == columns:
        n.finish(n.emit("matmul", n.x(1), n.x(2), n.x(0), **attrs, **({"beta": beta} if beta != 1.0 else {})))
        return
    bias = n.x(0) if beta == 1.0 else n.emit("mul", n.x(0), n.number(beta, n.dtype(0)))
    n.finish(n.emit("add", n.emit("matmul", n.x(1), n.x(2), **attrs), bias))


def _linear(n: CallView) -> None:
    """Arguments: x, w of a row for each output, bias."""
    if n.rank(0) < 2 or n.rank(1) != 2:
        n.refuse("it multiplies vectors; vkconv has products of matrices")
    n.finish(n.emit("matmul", n.x(0), n.x(1), *([n.x(2)] if n.has(2) else []), trans_b=True))


def _matmul(n: CallView) -> None:
    if not n.dtype(0).is_float or min(n.rank(0), n.rank(1)) < 2:
        n.refuse("it multiplies integers or vectors; vkconv has products of float matrices")
    n.finish(n.emit("matmul", n.x(0), n.x(1)))


def _pool_window(n: CallView, stride: int, padding: int) -> tuple[tuple[int, ...], dict[str, AttrValue]]:
    kernel = n.ints(1, 2)
    pads = n.ints(padding, 2, (0,))
    return kernel, {"kernel": kernel, "stride": n.ints(stride, 2) or kernel, "padding": (*pads, *pads)}


def _batched(n: CallView) -> None:
    if n.rank(0) != 4:
        n.refuse(f"its input has rank {n.rank(0)}; vkconv has it for (N, C, H, W)")


def _max_pool(n: CallView) -> None:
    """Makes maxima and where they are, counted within an image's channel."""
    y, attrs = _maxima(n)
    where = ""
    if 1 in n.used():
        h, w = n.meta(0).shape[2:]
        plane = n.number(n.int_of(h) * n.int_of(w), DType.I64)
        of_all = n.emit("pool2d_argmax", n.x(0), **attrs)
        where = n.cast(n.emit("mod", of_all, plane), DType.I64, n.made[1].dtype)
    n.finish((y, where))


def _max_pool_alone(n: CallView) -> None:
    n.finish(_maxima(n)[0])


def _maxima(n: CallView) -> tuple[str, dict[str, AttrValue]]:
    """Arguments: x, kernel, stride, padding, dilation, ceil_mode."""
    _batched(n)
    _, attrs = _pool_window(n, 2, 3)
    attrs |= {"dilation": n.ints(4, 2, (1,)), "ceil_mode": bool(n.arg(5, False))}
    return n.emit("pool2d", n.x(0), kind="max", **attrs), attrs


def _avg_pool(n: CallView) -> None:
    """Arguments: x, kernel, stride, padding, ceil_mode, count_include_pad, divisor."""
    _batched(n)
    if n.has(6):
        n.refuse("a divisor of its own; vkconv divides by the elements of the window")
    _, attrs = _pool_window(n, 2, 3)
    attrs |= {"ceil_mode": bool(n.arg(4, False)), "count_include_pad": bool(n.arg(5, True))}
    n.finish(n.emit("pool2d", n.x(0), kind="avg", **attrs))


def _adaptive_avg_pool(n: CallView) -> None:
    """Windows of one size, where the output's size divides the input's."""
    _batched(n)
    size, (h, w) = n.ints(1, 2), n.meta(0).shape[2:]
    if size == (1, 1):
        n.finish(n.emit("reduce", n.x(0), op="mean", axes=(2, 3), keepdims=True))
        return
    if h % size[0] or w % size[1]:
        n.refuse(f"from {h}x{w} to {size[0]}x{size[1]} its windows are not of one size")
    kernel = (n.int_of(h // size[0]), n.int_of(w // size[1]))
    n.finish(n.emit("pool2d", n.x(0), kind="avg", kernel=kernel, stride=kernel))


def _batch_norm(n: CallView) -> None:
    """Arguments: x, scale, bias, mean, variance, momentum, epsilon; makes y and two empty tensors."""
    if not (n.has(1) and n.has(2)):
        n.refuse("no scale or no bias; give the layer affine=True")
    _only_first(n)
    y = n.emit("batch_norm", *(n.x(i) for i in range(5)), eps=float(n.arg(6)))
    n.finish((y, "", ""))


def _layer_norm(n: CallView) -> None:
    """Arguments: x, shape, scale, bias, epsilon; makes y, means and deviations, of which only y is there."""
    _only_first(n)
    axis = n.rank(0) - len(n.arg(1))
    operands = [n.x(i) if n.has(i) else "" for i in (2, 3)]
    while operands and not operands[-1]:
        operands.pop()
    n.finish((n.emit("layer_norm", n.x(0), *operands, axis=axis, eps=float(n.arg(4))), "", ""))


def _group_norm(n: CallView) -> None:
    """Arguments: x, scale, bias, N, C, H W, groups, epsilon."""
    _only_first(n)
    operands = [n.x(i) if n.has(i) else "" for i in (1, 2)]
    while operands and not operands[-1]:
        operands.pop()
    y = n.emit("group_norm", n.x(0), *operands, groups=n.int_of(n.arg(6)), eps=float(n.arg(7)))
    n.finish((y, "", ""))


def _only_first(n: CallView) -> None:
    if n.used() - {0}:
        n.refuse("more than its first output is used")


def _attention(n: CallView) -> None:
    """Arguments: q, k, v, dropout, causal; mask and scale by name."""
    _only_first(n)
    if n.arg(3, 0.0):
        n.refuse("dropout; export the program for inference")
    mask = n.option("attn_mask", 5)
    scale = n.option("scale", 6)
    attrs: dict[str, AttrValue] = {"causal": bool(n.arg(4, False))}
    attrs["scale"] = float(scale) if scale is not None else float(n.int_of(n.meta(0).shape[-1])) ** -0.5
    operands = [n.x(i) for i in range(3)] + ([n.value(mask)] if mask is not None else [])
    n.finish((n.emit("attention", *operands, **attrs), ""))


def _plain_attention(n: CallView) -> None:
    """Arguments: q, k, v, mask, dropout, causal; scale and grouped heads by name. A mask of bools says what is seen."""
    if n.arg(4, 0.0) or n.rank(0) not in (3, 4):
        n.refuse("dropout, or operands that are not of rank 3 or 4")
    given = n.option("scale", 6)
    scale = float(n.int_of(n.meta(0).shape[-1])) ** -0.5 if given is None else float(given)
    operands = [n.x(i) for i in range(3)]
    if n.has(3):
        mask = n.x(3)
        if n.dtype(3) is DType.BOOL:
            dtype = n.dtype(0)
            mask = n.emit("where", mask, n.number(0.0, dtype), n.number(float("-inf"), dtype))
        operands.append(mask)
    n.finish(n.emit("attention", *operands, scale=scale, causal=bool(n.arg(5, False))))


def _upsample(mode: str, n: CallView) -> None:
    """Arguments: x, size or None, [align_corners,] factors. Sizes are known, and say more than factors do."""
    _batched(n)
    linear = mode == "linear"
    attrs: dict[str, AttrValue] = {"mode": mode, "coordinate": "asymmetric", "nearest": "floor"}
    if linear:
        attrs = {"mode": mode, "coordinate": "align_corners" if n.arg(2) else "half_pixel"}
    factors = n.arg(3 if linear else 2)
    if factors is not None and not isinstance(factors, list | tuple):
        factors = (factors, n.arg(4 if linear else 3))
    sizes = tuple(n.int_of(d) for d in n.made.shape[2:])
    # Factors that are given place the pixels, also where the size is not the whole product.
    if factors is not None and all(f is not None for f in factors) and not (linear and n.arg(2)):
        n.finish(n.emit("resize", n.x(0), axes=(2, 3), scales=tuple(float(f) for f in factors), **attrs))
    else:
        n.finish(n.emit("resize", n.x(0), axes=(2, 3), sizes=sizes, **attrs))


def _grid_sample(n: CallView) -> None:
    """Arguments: x, grid, mode and padding by their numbers, align_corners."""
    _batched(n)
    mode, padding = n.int_of(n.arg(2)), n.int_of(n.arg(3))
    if not (0 <= mode < len(_MODES) and 0 <= padding < len(_PADDINGS)):
        n.refuse(f"mode {mode}, padding {padding}; vkconv has {len(_MODES)} modes and {len(_PADDINGS)} paddings")
    attrs: dict[str, AttrValue] = {"mode": _MODES[mode], "padding": _PADDINGS[padding]}
    n.finish(n.emit("grid_sample", n.x(0), n.x(1), align_corners=bool(n.arg(4)), **attrs))


# GridSamplerInterpolation and GridSamplerPadding of ATen.
_MODES, _PADDINGS = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")


def _pixel_shuffle(n: CallView) -> None:
    _batched(n)
    n.finish(n.emit("depth_to_space", n.x(0), block=n.int_of(n.arg(1)), mode="crd"))


def _softmax(log: bool, n: CallView) -> None:
    if n.rank(0) == 0 or (n.dtype(0) is not DType.F32 and n.arg(2, False)):
        n.refuse("it is of a scalar, or changes its element type")
    n.finish(n.emit("softmax", n.x(0), axis=n.axis(n.arg(1), n.rank(0)), log=log))


RULES: dict[str, Rule] = {
    "_adaptive_avg_pool2d.default": _adaptive_avg_pool,
    "_log_softmax.default": partial(_softmax, True),
    "_native_batch_norm_legit_no_training.default": _batch_norm,
    "_scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "_softmax.default": partial(_softmax, False),
    "adaptive_avg_pool2d.default": _adaptive_avg_pool,
    "addmm.default": _addmm,
    "avg_pool2d.default": _avg_pool,
    "bmm.default": _matmul,
    "convolution.default": _convolution,
    "grid_sampler_2d.default": _grid_sample,
    "linear.default": _linear,
    "max_pool2d.default": _max_pool_alone,
    "max_pool2d_with_indices.default": _max_pool,
    "mm.default": _matmul,
    "native_group_norm.default": _group_norm,
    "native_layer_norm.default": _layer_norm,
    "pixel_shuffle.default": _pixel_shuffle,
    "scaled_dot_product_attention.default": _plain_attention,
    "upsample_bilinear2d.vec": partial(_upsample, "linear"),
    "upsample_nearest2d.vec": partial(_upsample, "nearest"),
}
