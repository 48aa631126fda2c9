"""Export rules: for each op of vkconv, the ONNX nodes that compute it."""

from functools import partial

from vkconv.core import DType
from vkconv.graph.onnx.elementwise import BINARY, UNARY
from vkconv.graph.onnx.reductions import REDUCE
from vkconv.onnx_export import attention, quantized
from vkconv.onnx_export.view import CONTRIB, ELEMENT_TYPES, Rule, View
from vkconv.onnx_export.windows import pair, window
from vkconv.ops.core.activation import ACTIVATIONS
from vkconv.ops.kernels.epilogue import PRELU

_END = (1 << 63) - 1
# vkconv's op: ONNX's, and the names of its float attributes.
_UNARY = {ours: (theirs, tuple(name for name, _ in params)) for theirs, (ours, params) in UNARY.items()}
_BINARY = {ours: theirs for theirs, ours in BINARY.items()} | {
    "minimum": "Min",
    "maximum": "Max",
    "pow": "Pow",
    "prelu": "PRelu",
    "equal": "Equal",
    "logical_equal": "Equal",
}


def _function(v: View, op: str, x: str, a: float, b: float, to: str | None = None) -> str:
    """A scalar function of a value, into ``to`` or a value in between."""
    outputs = (to or v.value(),)
    if op in _UNARY:
        theirs, names = _UNARY[op]
        return v.write(theirs, (x,), outputs, **dict(zip(names, (a, b), strict=False)))
    if op in ("relu6", "clip"):
        bounds = (0.0, 6.0) if op == "relu6" else (a, b)
        return v.write("Clip", (x, *(v.number(bound, v.dtype(v.inputs[0])) for bound in bounds)), outputs)
    if op in ("gelu", "gelu_tanh"):
        return v.write("Gelu", (x,), outputs, approximate="none" if op == "gelu" else "tanh")
    if op == "silu":
        return v.write("Mul", (x, v.emit("Sigmoid", x)), outputs)
    v.refuse("ONNX has no such function")
    raise AssertionError("unreachable")


def _unary(v: View) -> None:
    _function(v, v.node.op, v.inputs[0], v.attrs.get("a", 0.0), v.attrs.get("b", 0.0), v.output)


def _activated(v: View, value: str) -> None:
    """A value with the residual, activation, scale and shift of the node, as its output."""
    if _residual(v):
        plain = (v.attrs["act"], v.attrs["out_scale"], v.attrs["out_shift"]) == ("none", 1, 0)
        value = v.write("Add", (value, _residual(v)), (v.output if plain else v.value(),))
        if plain:
            return
    scale, shift, act = v.attrs["out_scale"], v.attrs["out_shift"], v.attrs["act"]
    steps: list[tuple[str, float]] = [("Mul", scale)] * (scale != 1) + [("Add", shift)] * (shift != 0)
    last = v.output if not steps else None
    if act == PRELU:
        # The slope lies along the channels, which two dimensions follow.
        slope = v.emit("Unsqueeze", v.input("slope"), v.number((1, 2), DType.I64))
        value = v.write("PRelu", (value, slope), (last or v.value(),))
    elif act != "none":
        value = _function(v, act, value, v.attrs["act_a"], v.attrs["act_b"], last)
    elif last:
        v.write("Identity", (value,), (last,))
    for i, (op, number) in enumerate(steps):
        to = v.output if i == len(steps) - 1 else v.value()
        value = v.write(op, (value, v.number(number, v.dtype(v.inputs[0]))), (to,))


def _residual(v: View) -> str:
    """The value that the node adds to its sums, "" where there is none."""
    return v.input("residual") if v.node.op in ("conv2d", "matmul") else ""


def _is_plain(v: View) -> bool:
    is_rescaled = (v.attrs["out_scale"], v.attrs["out_shift"]) != (1, 0)
    return v.attrs["act"] == "none" and not is_rescaled and not _residual(v)


def _conv(op: str, v: View) -> None:
    more: dict[str, object] = {"group": v.attrs["groups"]}
    if op == "ConvTranspose":
        more["output_padding"] = pair(v.attrs["output_padding"])
        more["output_shape"] = list(v.attrs["output_shape"]) or None
    to = v.output if _is_plain(v) else v.value()
    value = v.write(op, (v.input("x"), v.input("w"), v.input("b")), (to,), **window(v), **more)
    if to != v.output:
        _activated(v, value)


def _matmul(v: View) -> None:
    """Gemm where it transposes or scales matrices. onnx refuses it where the operands turn out to be more."""
    a, b, bias = v.input("a"), v.input("b"), v.input("bias")
    plain = _is_plain(v)
    ranks = {v.rank(a), v.rank(b)} - {None, 2}
    if ranks:
        a, b = (_exchanged(v, x) if v.attrs[f"trans_{n}"] else x for n, x in (("a", a), ("b", b)))
        a = v.emit("Mul", a, v.number(v.attrs["alpha"], v.dtype(v.input("a")))) if v.attrs["alpha"] != 1 else a
    gemm = not ranks and (v.attrs["trans_a"] or v.attrs["trans_b"] or v.attrs["alpha"] != 1)
    to = v.output if plain else v.value()
    if gemm:
        flags = {"transA": int(v.attrs["trans_a"]), "transB": int(v.attrs["trans_b"])}
        value = v.write("Gemm", (a, b, bias), (to,), **flags, alpha=v.attrs["alpha"], beta=v.attrs["beta"])
    elif bias:
        if v.attrs["beta"] != 1:
            bias = v.emit("Mul", bias, v.number(v.attrs["beta"], v.dtype(v.input("bias"))))
        value = v.write("Add", (v.emit("MatMul", a, b), bias), (to,))
    else:
        value = v.write("MatMul", (a, b), (to,))
    if not plain:
        _activated(v, value)


def _matmul_nbits(v: View) -> None:
    """ONNX Runtime's operator: ONNX has none."""
    a, b = (v.export.specs.get(v.input(name)) for name in ("a", "b"))
    if a is None or b is None:
        v.refuse("its sums are over a dimension that is open; write the model at fixed shapes")
        return
    to, bits = v.output if _is_plain(v) else v.value(), int(v.attrs["bits"])
    inputs = (v.input("a"), v.input("b"), v.input("scale"), v.input("zero"), "", v.input("bias"))
    n, _, nbytes = b.dims
    sizes = {"K": a.dims[-1], "N": n, "bits": bits, "block_size": nbytes * 8 // bits}
    value = v.write("MatMulNBits", inputs, (to,), domain=CONTRIB, **sizes)
    if to != v.output:
        _activated(v, value)


def _exchanged(v: View, value: str) -> str:
    """The value with its last two dimensions exchanged."""
    rank = v.rank(value) or 2
    return v.emit("Transpose", value, perm=[*range(rank - 2), rank - 1, rank - 2])


def _pool(v: View) -> None:
    kind = v.attrs["kind"]
    more: dict[str, object] = {"ceil_mode": int(v.attrs["ceil_mode"])}
    if kind == "avg":
        more["count_include_pad"] = int(v.attrs["count_include_pad"])
    if kind == "lp":
        if v.attrs["norm"] != int(v.attrs["norm"]):
            v.refuse(f"the norm is {v.attrs['norm']}, and in ONNX it is a whole number")
        more["p"] = int(v.attrs["norm"])
    op = {"max": "MaxPool", "avg": "AveragePool", "lp": "LpPool"}[kind]
    v.finish(op, v.inputs[0], kernel_shape=pair(v.attrs["kernel"]), **window(v), **more)


def _pool_argmax(v: View) -> None:
    more = {"ceil_mode": int(v.attrs["ceil_mode"]), "storage_order": int(v.attrs["column_major"])}
    outputs = (v.value(), v.output)
    v.write("MaxPool", v.inputs, outputs, kernel_shape=pair(v.attrs["kernel"]), **window(v), **more)


def _reduce(v: View) -> None:
    op = {ours: theirs for theirs, ours in REDUCE.items()}[v.attrs["op"]]
    v.finish(op, v.inputs[0], v.host("axes"), keepdims=int(v.attrs["keepdims"]))


def _arg_reduce(v: View) -> None:
    flags = {"keepdims": int(v.attrs["keepdims"]), "select_last_index": int(v.attrs["select_last"])}
    op = {"max": "ArgMax", "min": "ArgMin"}[v.attrs["op"]]
    if v.attrs["dtype"] == "i64":
        v.finish(op, v.inputs[0], axis=v.attrs["axis"], **flags)
    else:
        v.finish("Cast", v.emit(op, v.inputs[0], axis=v.attrs["axis"], **flags), to=_element(v.attrs["dtype"]))


def _element(dtype: str) -> int:
    return ELEMENT_TYPES[DType(dtype)]


def _cast(v: View) -> None:
    v.finish("Cast", v.inputs[0], to=_element(v.attrs["to"]))


def _norm(op: str, opset: int, v: View) -> None:
    """A normalization whose scale ONNX wants: one that the graph leaves out has no length to make one of."""
    v.needs_opset(opset)
    if not v.input("scale") or (op in ("InstanceNormalization", "GroupNormalization") and not v.input("bias")):
        v.refuse("it has no scale or bias, which ONNX wants")
    names = [n for n in ("scale", "bias") if op != "RMSNormalization" or n == "scale"]
    more = {"axis": v.attrs["axis"]} if "axis" in v.attrs else {}
    more |= {"num_groups": v.attrs["groups"]} if "groups" in v.attrs else {}
    v.finish(op, v.inputs[0], *(v.input(n) for n in names), epsilon=v.attrs["eps"], **more)


def _batch_norm(training: bool, v: View) -> None:
    more = {"training_mode": 1, "momentum": v.attrs["momentum"]} if training else {}
    v.finish("BatchNormalization", *v.inputs, epsilon=v.attrs["eps"], **more)


def _nearest_mode(v: View) -> object:
    """How Resize rounds, which since opset 11 does so alike along all axes."""
    nearest, scales = v.attrs["nearest"], v.attrs["scales"]
    if nearest != "ceil_where_smaller":
        return nearest
    if scales and all(scale <= 1 for scale in scales):
        return "ceil"
    if not scales or any(scale < 1 for scale in scales):
        v.refuse("it rounds up along axes that become shorter, and down along others, as Resize did in opset 10")
    return "floor"


def _resize(v: View) -> None:
    attrs = v.attrs
    mode, coordinate = attrs["mode"], attrs["coordinate"]
    more: dict[str, object] = {"nearest_mode": _nearest_mode(v)} if mode == "nearest" else {}
    more |= {"cubic_coeff_a": attrs["cubic_a"]} if mode == "cubic" else {}
    more |= {"extrapolation_value": attrs["beyond"]} if coordinate == "tf_crop_and_resize" else {}
    more |= {"axes": list(attrs["axes"])} if attrs["axes"] else {}
    more |= {"keep_aspect_ratio_policy": attrs["policy"]} if attrs["policy"] != "stretch" else {}
    more |= {flag: 1 for flag in ("exclude_outside", "antialias") if attrs[flag]}
    operands = (v.host("roi", DType.F32), v.host("scales", DType.F32), v.host("sizes"))
    v.finish("Resize", v.inputs[0], *operands, mode=mode, coordinate_transformation_mode=coordinate, **more)


def _merge(v: View) -> None:
    """Dimensions first to last as one: the shape around them, and -1."""
    first, last = v.attrs["first"], v.attrs["last"]
    parts = [v.number((-1,), DType.I64)]
    if first:
        parts.insert(0, v.emit("Shape", v.inputs[0], start=0, end=first))
    if last != -1:
        parts.append(v.emit("Shape", v.inputs[0], start=last + 1))
    shape = v.emit("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]
    v.finish("Reshape", v.inputs[0], shape)


def _split(v: View) -> None:
    sizes = v.host("sizes")
    v.finish("Split", v.inputs[0], sizes, axis=v.attrs["axis"], num_outputs=None if sizes else len(v.node.outputs))


def _pad(v: View) -> None:
    value = v.host("value", v.dtype(v.inputs[0]), scalar=True) if v.attrs["mode"] == "constant" else ""
    v.finish("Pad", v.inputs[0], v.host("pads"), value, v.host("axes"), mode=v.attrs["mode"])


def _slice(v: View) -> None:
    starts, ends, axes = v.host("starts"), v.host("ends"), v.host("axes")
    if not axes and v.host("steps") and v.input("steps"):
        v.refuse("its steps are computed, and its axes left open")
    v.finish("Slice", v.inputs[0], starts, ends, axes, v.host("steps"))


def _reshape(v: View) -> None:
    v.finish("Reshape", v.inputs[0], v.host("shape"), allowzero=int(v.attrs["allowzero"]))


def _constant_of_shape(v: View) -> None:
    import numpy as np
    import onnx.numpy_helper

    fill = np.asarray([v.attrs["value"]], DType(v.attrs["dtype"]).numpy)
    v.finish("ConstantOfShape", v.host("shape"), value=onnx.numpy_helper.from_array(fill))


def _range(v: View) -> None:
    dtype = DType(v.attrs["dtype"])
    v.finish("Range", *(v.host(name, dtype, scalar=True) for name in ("start", "limit", "delta")))


def _host(op: str, *names: str, scalar: bool = False, **attrs: str) -> Rule:
    """A rule for an op of one operand, others that steer it, and attributes by ONNX's name."""

    def rule(v: View) -> None:
        operands = [v.host(name, scalar=scalar) for name in names]
        v.finish(op, v.inputs[0], *operands, **_attrs(v, attrs))

    return rule


def _plain(op: str, **attrs: str) -> Rule:
    """A rule for an op that has the same operands in ONNX."""
    return lambda v: v.finish(op, *v.inputs, **_attrs(v, attrs))


def _attrs(v: View, names: dict[str, str]) -> dict[str, object]:
    """Attributes by ONNX's name: flags as integers, empty tuples left out."""
    found = {theirs: v.attrs[ours] for theirs, ours in names.items()}
    return {
        theirs: int(value) if isinstance(value, bool) else list(value) or None if isinstance(value, tuple) else value
        for theirs, value in found.items()
    }


def _indexed(op: str, names: tuple[str, ...], v: View) -> None:
    """An op whose second operand has indices of 64 bits in ONNX."""
    v.finish(op, v.inputs[0], v.indices(v.inputs[1]), *v.inputs[2:], **{name: v.attrs[name] for name in names})


def _tensor_scatter(v: View) -> None:
    axis = v.attrs["axis"]
    if axis == 0:
        v.refuse("ONNX's TensorScatter has the batch as the first dimension, not rows")
    v.needs_opset(24)
    at = v.indices(v.inputs[2])
    batch = v.emit("Slice", v.emit("Shape", v.inputs[0]), *(v.number([n], DType.I64) for n in (0, 1)))
    mode = "circular" if v.attrs["circular"] else "linear"
    v.finish("TensorScatter", *v.inputs[:2], v.emit("Expand", at, batch), axis=axis, mode=mode)


def _blocks(op: str, v: View) -> None:
    mode = v.attrs["mode"].upper()
    if op == "SpaceToDepth" and mode != "DCR":
        v.needs_opset(26)
    v.finish(op, v.inputs[0], blocksize=v.attrs["block"], mode=mode if op == "DepthToSpace" or mode != "DCR" else None)


def _cumulative(v: View) -> None:
    if v.attrs["op"] != "sum":
        v.needs_opset(26)
    flags = {name: int(v.attrs[name]) for name in ("exclusive", "reverse")}
    v.finish("CumSum" if v.attrs["op"] == "sum" else "CumProd", v.inputs[0], v.host("axis", scalar=True), **flags)


def _one_hot(v: View) -> None:
    v.finish("OneHot", v.inputs[0], v.host("depth", scalar=True), v.inputs[1], axis=v.attrs["axis"])


def _is_infinite(negative: bool, positive: bool, v: View) -> None:
    v.finish("IsInf", v.inputs[0], detect_negative=int(negative), detect_positive=int(positive))


def _eye_like(v: View) -> None:
    v.finish("EyeLike", v.inputs[0], k=v.attrs["k"], dtype=_element(v.attrs["dtype"]))


def _grid_sample(v: View) -> None:
    flags = {"padding_mode": v.attrs["padding"], "align_corners": int(v.attrs["align_corners"])}
    v.finish("GridSample", *v.inputs, mode=v.attrs["mode"], **flags)


def _roi_align(v: View) -> None:
    ways = {(0.5, False): "half_pixel", (0.0, True): "output_half_pixel"}
    way = ways.get((v.attrs["offset"], v.attrs["at_least_one"]))
    if way is None:
        v.refuse("ONNX takes half a pixel off, or nothing and sides of less than one for one")
    cells = dict(zip(("output_height", "output_width"), v.attrs["cells"], strict=True))
    names = {"mode": "mode", "sampling_ratio": "samples", "spatial_scale": "scale"}
    v.finish("RoiAlign", *v.inputs, coordinate_transformation_mode=way, **cells, **_attrs(v, names))


def _dropout(v: View) -> None:
    training = v.input("training") or v.number(v.attrs["training"], DType.BOOL)
    v.finish("Dropout", v.inputs[0], v.host("ratio", DType.F32, scalar=True), training)


def _deform_conv(v: View) -> None:
    geometry = {"strides": pair(v.attrs["stride"]), "dilations": pair(v.attrs["dilation"])}
    groups = {"group": v.attrs["groups"], "offset_group": v.attrs["offset_groups"]}
    v.finish("DeformConv", *v.inputs, pads=pair(v.attrs["padding"], 4), **geometry, **groups)


def _softmax(v: View) -> None:
    if v.attrs["zero_rows"]:
        v.refuse("it makes 0 of a row of nothing but -inf, of which ONNX's Softmax makes NaN")
    v.finish("LogSoftmax" if v.attrs["log"] else "Softmax", v.inputs[0], axis=v.attrs["axis"])


RULES: dict[str, Rule] = {
    **dict.fromkeys((name for name in ACTIVATIONS if name != "none"), _unary),
    **{ours: _plain(theirs) for ours, theirs in _BINARY.items()},
    **attention.RULES,
    **quantized.RULES,
    **{ours: _plain(_UNARY[ours][0]) for ours in ("is_nan", "logical_not")},
    "affine_grid": _host("AffineGrid", "size", align_corners="align_corners"),
    "arg_reduce": _arg_reduce,
    "batch_norm": partial(_batch_norm, False),
    "batch_norm_training": partial(_batch_norm, True),
    "cast": _cast,
    "center_crop_pad": _host("CenterCropPad", "shape", axes="axes"),
    "col2im": _host("Col2Im", "image", "block", strides="stride", dilations="dilation", pads="padding"),
    "concat": _plain("Concat", axis="axis"),
    "constant_of_shape": _constant_of_shape,
    "conv2d": partial(_conv, "Conv"),
    "conv_transpose2d": partial(_conv, "ConvTranspose"),
    "cumulative": _cumulative,
    "deform_conv2d": _deform_conv,
    "depth_to_space": partial(_blocks, "DepthToSpace"),
    "dropout": _dropout,
    "expand": _host("Expand", "shape"),
    "eye_like": _eye_like,
    "flatten": _plain("Flatten", axis="axis"),
    "fmod": lambda v: v.finish("Mod", *v.inputs, fmod=1),
    "gather": _plain("Gather", axis="axis"),
    "gather_elements": _plain("GatherElements", axis="axis"),
    "gather_nd": partial(_indexed, "GatherND", ("batch_dims",)),
    "grid_sample": _grid_sample,
    "group_norm": partial(_norm, "GroupNormalization", 21),
    "hardmax": _plain("Hardmax", axis="axis"),
    "identity": _plain("Identity"),
    "instance_norm": partial(_norm, "InstanceNormalization", 0),
    "is_inf": partial(_is_infinite, True, True),
    "is_negative_inf": partial(_is_infinite, True, False),
    "is_positive_inf": partial(_is_infinite, False, True),
    "layer_norm": partial(_norm, "LayerNormalization", 17),
    "matmul": _matmul,
    "matmul_nbits": _matmul_nbits,
    "merge": _merge,
    "mod": _plain("Mod"),
    "one_hot": _one_hot,
    "pad": _pad,
    "pool2d": _pool,
    "pool2d_argmax": _pool_argmax,
    "range": _range,
    "reduce": _reduce,
    "reshape": _reshape,
    "resize": _resize,
    "reverse_sequence": partial(_indexed, "ReverseSequence", ("time_axis", "batch_axis")),
    "rms_norm": partial(_norm, "RMSNormalization", 23),
    "roi_align": _roi_align,
    "scatter_elements": _plain("ScatterElements", axis="axis", reduction="reduction"),
    "scatter_nd": partial(_indexed, "ScatterND", ("reduction",)),
    "shape": lambda v: v.finish("Shape", *v.inputs, start=v.attrs["start"], end=v.attrs["end"]),
    "size": _plain("Size"),
    "slice": _slice,
    "softmax": _softmax,
    "space_to_depth": partial(_blocks, "SpaceToDepth"),
    "split": _split,
    "squeeze": _host("Squeeze", "axes"),
    "tensor_scatter": _tensor_scatter,
    "tile": _host("Tile", "repeats"),
    "topk": _host("TopK", "k", axis="axis", largest="largest"),
    "transpose": _plain("Transpose", perm="perm"),
    "trilu": _host("Trilu", "k", scalar=True, upper="upper"),
    "unsqueeze": _host("Unsqueeze", "axes"),
    "where": _plain("Where"),
}
