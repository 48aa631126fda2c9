"""Rules of passes that fold one node into another and fuse several into one launch."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vkconv.call import Call
from vkconv.core import DType
from vkconv.ops.core.activation import ACTIVATIONS
from vkconv.ops.core.base import Attrs
from vkconv.ops.kernels.epilogue import PRELU, binds_residual, rescales
from vkconv.plan.bound import BoundNode, widen
from vkconv.plan.moving import ALIASES
from vkconv.plan.rewrite import Rewriter

Vector = npt.NDArray[np.float64]

# Ops whose kernels apply a scalar function to each result before storing it.
_FUSES_ACTIVATION = ("conv2d", "conv_transpose2d", "matmul", "matmul_nbits")
_CONVOLUTIONS = ("conv2d", "conv_transpose2d")
# Those that add a value of the shape of their result to it.
_ADDS = ("conv2d", "matmul")
# Numbers that two operations become may not leave what f32 holds in full.
_SMALLEST, _LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


def drop_neutral(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """x * 1, x / 1, x + 0, x - 0, x ** 1, and what moves elements and leaves all where they were, are x."""
    neutral = {"mul": 1.0, "div": 1.0, "add": 0.0, "sub": 0.0, "pow": 1.0}.get(node.call.op)
    x: str | None = None
    if neutral is not None:
        a, b = node.reads["a"], node.reads["b"]
        if rewriter.scalar(b) == neutral:
            x = a
        elif node.call.op in ("mul", "add") and rewriter.scalar(a) == neutral:
            x = b
    elif node.call.op == "identity" or _moves_nothing(node.call):
        x = node.reads["x"]
    elif node.call.op == "concat" and len(node.reads) == 1:
        x = node.reads["x0"]
    written = next(iter(node.writes.values()))
    # Broadcasting against the constant may have added dimensions; then it is no copy of x.
    if x is not None and x not in rewriter.constants and rewriter.specs[x] == rewriter.specs[written]:
        rewriter.same(written, x)
    return None


def reshape_for_transpose(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """A permutation that only moves dimensions of 1 moves no bytes: it is a reshape."""
    if node.call.op != "transpose":
        return None
    shape = node.call.shape("x")
    moved = [p for p in node.call["perm"] if shape[p] != 1]
    if moved != sorted(moved):
        return None
    return rewriter.node(node, "reshape", node.reads, {"shape": node.call.shape("y"), "allowzero": True})


def fold_transpose(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """A matmul of an operand whose last two dimensions are exchanged reads it as it was; where others change place
    too, as they are with the last dimension kept."""
    if node.call.op != "matmul":
        return None
    reads, attrs = dict(node.reads), dict(node.call.attrs)
    for operand in ("a", "b"):
        made = rewriter.maker(reads[operand], "transpose")
        rank = len(rewriter.specs[reads[operand]].dims)
        if made is not None and made.call["perm"] == (*range(rank - 2), rank - 1, rank - 2):
            reads[operand] = made.reads["x"]
        elif made is not None and rewriter.only_reader(reads[operand]) and made.call["perm"][-2] == rank - 1:
            perm = (*made.call["perm"][:-2], made.call["perm"][-1], rank - 1)
            reads[operand] = rewriter.before("transpose", {"x": made.reads["x"]}, {"perm": perm}, made.name)
        else:
            continue
        attrs[f"trans_{operand}"] = not attrs[f"trans_{operand}"]
    return rewriter.node(node, "matmul", reads, attrs) if reads != node.reads else None


def fold_pad(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """A convolution of an image that is padded with zeros pads it itself."""
    pad = rewriter.maker(node.reads["x"], "pad") if node.call.op == "conv2d" else None
    if pad is None or pad.call["mode"] != "constant" or pad.call["value"] != 0:
        return None
    (n0, c0, top, left, n1, c1, bottom, right) = pad.call["pads"]
    more = (top, left, bottom, right)
    if n0 or c0 or n1 or c1 or min(more) < 0:
        return None
    padding = tuple(p + q for p, q in zip(node.call["padding"], more, strict=True))
    return rewriter.node(node, "conv2d", {**node.reads, "x": pad.reads["x"]}, {**node.call.attrs, "padding": padding})


def fold_batch_norm(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """A convolution then batch_norm, all parameters constant, is one convolution: w' = w s, b' = (b - mean) s + bias
    with s = scale / sqrt(var + eps), computed in float64."""
    affine = _affine(rewriter, node) if node.call.op == "batch_norm" else None
    return _fold_affine(rewriter, node, node.reads["x"], *affine) if affine else None


def fold_scale(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """A convolution then a product with a constant along the output channels, or with a scalar, scales its weights."""
    if node.call.op not in ("mul", "div"):
        return None
    for value, other in _either_way(node):
        factor = _along_channels(rewriter, value, other, 1)
        if factor is not None and (node.call.op == "mul" or value == node.reads["a"]):
            with np.errstate(all="ignore"):
                factor = factor if node.call.op == "mul" else 1 / factor
            return _fold_affine(rewriter, node, value, factor, np.zeros_like(factor))
    return None


def fold_bias(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """A convolution or matmul, then + a constant along the output channels or a scalar, takes it into its bias."""
    if node.call.op != "add":
        return None
    for value, other in _either_way(node):
        shift = _along_channels(rewriter, value, other, 1)
        if shift is not None:
            folded = _fold_affine(rewriter, node, value, np.ones_like(shift), shift)
            if folded is not None:
                return folded
        matmul = _unfinished(rewriter, value, "matmul")
        shift = _along_channels(rewriter, value, other, -1)
        if matmul is None or shift is None or "bias" in matmul.reads:
            continue
        if rewriter.specs[value].dtype is DType.F32:
            reads = {**matmul.reads, "bias": rewriter.constant(f"{node.name}.bias", shift)}
            return rewriter.node(node, "matmul", reads, {**matmul.call.attrs, "beta": 1.0}, matmul.name)
    return None


def fold_affine(rewriter: Rewriter, node: BoundNode, in_f16: bool = False) -> BoundNode | None:
    """A convolution or matmul that has its bias, then a factor or summand along its channels or columns, all constant,
    scales its weights and bias. A scalar factor of a matmul is left to its out_scale. ``in_f16`` is whether weights may
    be stored so."""
    if node.call.op not in ("mul", "div", "add", "sub"):
        return None
    for value, other in _either_way(node)[: 1 if node.call.op in ("div", "sub") else 2]:
        matmul = _unfinished(rewriter, value, "matmul")
        number = _along_channels(rewriter, value, other, -1 if matmul else 1)
        if number is None:
            continue
        scales = node.call.op in ("mul", "div")
        with np.errstate(all="ignore"):
            factor = np.ones_like(number) if not scales else number if node.call.op == "mul" else 1 / number
        shift = np.zeros_like(number) if scales else number if node.call.op == "add" else -number
        if matmul is None:
            made = _fold_affine(rewriter, node, value, factor, shift, in_f16)
        elif scales and rewriter.scalar(other) is not None:
            made = None
        else:
            made = _fold_columns(rewriter, node, matmul, factor, shift, in_f16)
        if made is not None:
            return made
    return None


def fold_into_batch_norm(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """batch_norm, then times or + a constant along the channels or a scalar, takes it into its scale and bias."""
    if node.call.op not in ("mul", "add"):
        return None
    for value, other in _either_way(node):
        norm = rewriter.maker(value, "batch_norm")
        number = _along_channels(rewriter, value, other, 1)
        if norm is None or number is None or not rewriter.only_reader(value):
            continue
        scale, bias = (rewriter.constants.get(norm.reads[p]) for p in ("scale", "bias"))
        if scale is None or bias is None or rewriter.specs[value].dtype is not DType.F32:
            return None
        with np.errstate(all="ignore"):
            factor, shift = (number, 0.0) if node.call.op == "mul" else (1.0, number)
            pair = (widen(scale) * factor, widen(bias) * factor + shift)
            new = {name: np.asarray(array, np.float32) for name, array in zip(("scale", "bias"), pair, strict=True)}
        if all(np.isfinite(array).all() for array in new.values()):
            named = {name: rewriter.constant(f"{node.name}.{name}", array) for name, array in new.items()}
            return rewriter.node(node, "batch_norm", {**norm.reads, **named}, norm.call.attrs, norm.name)
    return None


def spell_batch_norm(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """batch_norm with constant parameters is x * s + t along the channels, to which a chain may add what follows."""
    affine = _affine(rewriter, node) if node.call.op == "batch_norm" else None
    if affine is None or rewriter.specs[node.writes["y"]].dtype is not DType.F32:
        return None
    factor, shift = (array.astype(np.float32).reshape(-1, *(1,) * (len(node.call.shape("x")) - 2)) for array in affine)
    if not (np.isfinite(factor).all() and np.isfinite(shift).all()):
        return None
    names = (rewriter.constant(f"{node.name}.{name}", array) for name, array in (("s", factor), ("t", shift)))
    reads = dict(zip(("x0", "x1", "x2"), (node.reads["x"], *names), strict=True))
    return rewriter.node(node, "chain", reads, {"steps": "mul_x1/add_x2"})


def fold_alpha(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """A matmul of what a scalar constant multiplies or divides, as attention has it, takes the factor as its alpha,
    also where that was moved in between."""
    if node.call.op != "matmul":
        return None
    reads, alpha = dict(node.reads), float(node.call["alpha"])
    for operand in ("a", "b"):
        value, moved = reads[operand], list[BoundNode]()
        while rewriter.only_reader(value) and (mover := rewriter.maker(value, "transpose", *ALIASES)) is not None:
            moved.append(mover)
            value = mover.reads["x"]
        scaled = rewriter.maker(value, "mul", "div")
        if scaled is None or not rewriter.only_reader(value) or rewriter.specs[value].dtype is not DType.F32:
            continue
        for x, other in _either_way(scaled)[: 1 if scaled.call.op == "div" else 2]:
            number = rewriter.scalar(other)
            if number and rewriter.specs[x] == rewriter.specs[value]:
                factor = alpha * number if scaled.call.op == "mul" else alpha / number
                if _SMALLEST <= abs(factor) <= _LARGEST:
                    for mover in reversed(moved):
                        x = rewriter.before(mover.call.op, {"x": x}, mover.call.attrs, mover.name)
                    reads[operand], alpha = x, factor
                    break
    return rewriter.node(node, "matmul", reads, {**node.call.attrs, "alpha": alpha}) if reads != node.reads else None


def fuse_residual(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """A value of the same shape added to what a convolution or matmul makes is added by that kernel before it stores,
    and before an activation that follows; of two that are added to each other by the later one. Only where the device
    binds a fifth storage buffer."""
    if node.call.op != "add" or rewriter.device is None or not binds_residual(rewriter.device):
        return None
    written = rewriter.specs[node.writes["y"]]
    for value, other in sorted(_either_way(node), key=lambda pair: rewriter.place(pair[0]), reverse=True):
        maker = _unfinished(rewriter, value, *_ADDS)
        if maker is None or "residual" in maker.reads or written.dtype is not DType.F32:
            continue
        if rewriter.specs[value] == rewriter.specs[other] == written:
            return _finished(rewriter, node, maker, {}, {"residual": other})
    return None


def fuse_activation(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """A scalar function right after a convolution or matmul is applied by that kernel before it stores."""
    row = ACTIVATIONS.get(node.call.op)
    if row is None or not row.epilogue:
        return None
    maker = _unfinished(rewriter, node.reads["x"], *_FUSES_ACTIVATION)
    parameters = {f"act_{key}": float(node.call[key]) for key, _ in zip("ab", row.params, strict=False)}
    return _finished(rewriter, node, maker, {"act": row.name, **parameters}) if maker else None


def fuse_prelu(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """prelu right after a convolution, with a constant slope per output channel, is applied by that kernel; with a
    scalar one it is leaky_relu, also after a matmul."""
    if node.call.op != "prelu":
        return None
    value, slope = node.reads["x"], node.reads["slope"]
    alpha = rewriter.scalar(slope)
    if alpha is not None:
        maker = _unfinished(rewriter, value, *_FUSES_ACTIVATION)
        return _finished(rewriter, node, maker, {"act": "leaky_relu", "act_a": alpha}) if maker else None
    conv = _unfinished(rewriter, value, *_CONVOLUTIONS)
    slopes = _along_channels(rewriter, value, slope, 1)
    if conv is None or slopes is None or rewriter.specs[value].dtype is not DType.F32:
        return None
    more = {"slope": rewriter.constant(f"{node.name}.slope", slopes)}
    return _finished(rewriter, node, conv, {"act": PRELU}, more)


def fuse_rescale(rewriter: Rewriter, node: BoundNode) -> BoundNode | None:
    """A scalar constant times, added to, or taken from what an activation leaves is applied by the kernel of the
    convolution or matmul before it stores, as its out_scale and out_shift."""
    if node.call.op not in ("mul", "add", "sub"):
        return None
    for value, other in _either_way(node)[: 1 if node.call.op == "sub" else 2]:
        number = rewriter.scalar(other)
        maker = rewriter.maker(value, *_FUSES_ACTIVATION)
        if number is None or maker is None or not rewriter.only_reader(value):
            continue
        if rewriter.specs[value].dtype is not DType.F32 or _has_parameters(maker.call["act"]):
            return None
        scale, shift = float(maker.call["out_scale"]), float(maker.call["out_shift"])
        if node.call.op == "mul":
            scale, shift = scale * number, shift * number
        else:
            shift += number if node.call.op == "add" else -number
        if all(n == 0 or _SMALLEST <= abs(n) <= _LARGEST for n in (scale, shift)):
            return _finished(rewriter, node, maker, {"out_scale": scale, "out_shift": shift})
    return None


def _has_parameters(act: str) -> bool:
    return act != PRELU and bool(ACTIVATIONS[act].params)


def _either_way(node: BoundNode) -> tuple[tuple[str, str], tuple[str, str]]:
    a, b = node.reads["a"], node.reads["b"]
    return (a, b), (b, a)


def _affine(rewriter: Rewriter, node: BoundNode) -> tuple[Vector, Vector] | None:
    """Factor and shift of a batch_norm by channel in float64, where all its parameters are constant."""
    parameters = [rewriter.constants.get(node.reads[p]) for p in ("scale", "bias", "mean", "var")]
    if any(p is None for p in parameters):
        return None
    scale, bias, mean, var = (widen(p) for p in parameters if p is not None)
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(var + float(node.call["eps"]))
        return factor, bias - mean * factor


def _along_channels(rewriter: Rewriter, value: str, other: str, axis: int) -> Vector | None:
    """The constant ``other`` as one number per channel of ``value``, if it is a scalar or lies along ``axis``; in
    float64."""
    constant = rewriter.constants.get(other)
    shape = rewriter.specs[value].dims
    if constant is None or len(shape) <= max(axis, 0) or constant.ndim > len(shape):
        return None
    along = [1] * len(shape)
    along[axis] = shape[axis]
    if constant.size != 1 and (1,) * (len(shape) - constant.ndim) + constant.shape != tuple(along):
        return None
    return np.broadcast_to(widen(constant).reshape(-1), (shape[axis],)).astype(np.float64)


def _unfinished(rewriter: Rewriter, value: str, *ops: str) -> BoundNode | None:
    """The node of one of the ops that makes a value for nothing but its one reader, and has no activation, scale or
    shift yet."""
    maker = rewriter.maker(value, *ops)
    if maker is None or not rewriter.only_reader(value) or rescales(maker.call.attrs):
        return None
    return maker if maker.call["act"] == "none" else None


def _finished(
    rewriter: Rewriter, node: BoundNode, maker: BoundNode, act: Attrs, more: Mapping[str, str] | None = None
) -> BoundNode:
    """What makes the operand of a node, in place of both: with the activation, and ``more`` operands."""
    reads = {**maker.reads, **(more or {})}
    return rewriter.node(node, maker.call.op, reads, {**maker.call.attrs, **act}, maker.name)


def _fold_affine(
    rewriter: Rewriter, node: BoundNode, value: str, factor: Vector, shift: Vector, in_f16: bool = False
) -> BoundNode | None:
    """A convolution of x * factor + shift per output channel, as one; None where it is not one or not alone, and
    where the new weights are not finite: infinity times the weights is not infinity times their sum."""
    conv = _unfinished(rewriter, value, *_CONVOLUTIONS)
    if conv is None or "residual" in conv.reads or rewriter.specs[value].dtype is not DType.F32:
        return None
    weight = rewriter.constants.get(conv.reads["w"])
    bias = rewriter.constants.get(conv.reads["b"]) if "b" in conv.reads else np.zeros(factor.shape)
    if weight is None or bias is None:
        return None
    with np.errstate(all="ignore"):
        new_weight = _rounded_product(weight, _over_weights(conv.call, factor))
        new_bias = (widen(bias) * factor + shift).astype(np.float32)
    if not (np.isfinite(new_weight).all() and np.isfinite(new_bias).all()):
        return None
    if in_f16 and not _kept_by_f16(new_weight):
        return None
    reads = {
        "x": conv.reads["x"],
        "w": rewriter.constant(f"{node.name}.w", new_weight),
        "b": rewriter.constant(f"{node.name}.b", new_bias),
    }
    return rewriter.node(node, conv.call.op, reads, conv.call.attrs, conv.name)


def _rounded_product(weight: npt.NDArray[Any], factor: Vector) -> npt.NDArray[Any]:
    """Weights of f32 times a factor, in float64 and rounded once, without an array of either in float64."""
    made = np.empty(np.broadcast_shapes(weight.shape, factor.shape), np.float32)
    np.multiply(weight, factor, out=made, dtype=np.float64, casting="same_kind")
    return made


def _fold_columns(
    rewriter: Rewriter, node: BoundNode, matmul: BoundNode, factor: Vector, shift: Vector, in_f16: bool
) -> BoundNode | None:
    """A matmul times factor + shift per column, as one; None where `_fold_affine` has none of a convolution."""
    if "residual" in matmul.reads or rewriter.specs[matmul.writes["y"]].dtype is not DType.F32:
        return None
    reads = dict(matmul.reads)
    if (factor != 1).any():
        weight = rewriter.constants.get(reads["b"])
        if weight is None:
            return None
        over = factor[:, None] if matmul.call["trans_b"] else factor
        with np.errstate(all="ignore"):
            weight = _rounded_product(weight, over)
        if not np.isfinite(weight).all() or (in_f16 and not _kept_by_f16(weight)):
            return None
        reads["b"] = rewriter.constant(f"{node.name}.b", weight)
    if "bias" in reads or shift.any():
        bias = rewriter.constants.get(reads["bias"]) if "bias" in reads else np.zeros(factor.shape)
        if bias is None:
            return None
        with np.errstate(all="ignore"):
            bias = (widen(bias) * float(matmul.call["beta"]) * factor + shift).astype(np.float32)
        if not np.isfinite(bias).all():
            return None
        reads["bias"] = rewriter.constant(f"{node.name}.bias", bias)
    return rewriter.node(node, "matmul", reads, {**matmul.call.attrs, "beta": 1.0}, matmul.name)


# f16 rounds what it holds as a subnormal number to a multiple of 2^-24. Where the largest weight is this at least, no
# weight is rounded by more than that one may be in any case.
_LEAST_IN_F16, _MOST_IN_F16 = 2.0**-13, float(np.finfo(np.float16).max)


def _kept_by_f16(weight: npt.NDArray[Any]) -> bool:
    """Whether f16 holds new weights, measured by the largest, as exactly as it holds others."""
    largest = float(np.abs(weight).max(initial=0.0))
    return largest == 0 or _LEAST_IN_F16 <= largest <= _MOST_IN_F16


def _over_weights(call: Call, factor: Vector) -> Vector:
    """A factor per output channel, shaped as it lies over the weights: conv2d has those channels in front,
    conv_transpose2d behind the input channels, and anew in every group of them."""
    if call.op == "conv2d":
        return factor[:, None, None, None]
    c_in, groups = call.shape("w")[0], call["groups"]
    return np.repeat(factor.reshape(groups, -1), c_in // groups, axis=0)[:, :, None, None]


def _moves_nothing(call: Call) -> bool:
    """Whether a transpose, pad or slice leaves all as it was. A slice may take every element in another order."""
    if call.op == "transpose":
        return bool(call["perm"] == tuple(range(len(call["perm"]))))
    if call.op == "pad":
        return not any(call["pads"])
    return call.op == "slice" and call.shape("x") == call.shape("y") and min(call["steps"], default=1) > 0
