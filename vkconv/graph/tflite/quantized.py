"""Import rules for integers: changes of representation, and convolutions and products that stay in bytes.

TensorFlow Lite's int8 specification: activations have one scale and zero point, weights of convolutions one for each
output channel with zero point 0, and the bias is i32 with the product of both scales.
"""

from collections.abc import Callable

import numpy as np

from vkconv.core import DType
from vkconv.graph.ir import AttrValue
from vkconv.graph.tflite.reader import Quantization, Tensor
from vkconv.graph.tflite.view import BYTES, OpView, Rule

_NOTHING, _RELU, _RELU_N1_TO_1, _RELU6 = range(4)
_BOUNDS = {_RELU: (0.0, np.inf), _RELU_N1_TO_1: (-1.0, 1.0), _RELU6: (0.0, 6.0)}


def _one_scale(tensor: Tensor) -> bool:
    return tensor.dtype in BYTES and tensor.quantization is not None and tensor.quantization.per_tensor


def _in_bytes(n: OpView) -> bool:
    """Whether input, constant weights and output are bytes, and the bias is what its own scale should be."""
    weights = n.tensor(1)
    whole_bias = not n.has(2) or (n.const(2) is not None and n.tensor(2).dtype is DType.I32)
    in_order = weights.dtype in BYTES and weights.quantization is not None and n.const(1) is not None
    return _one_scale(n.tensor(0)) and _one_scale(n.output()) and in_order and whole_bias


def _operands(n: OpView, x: str, w: str, along: int) -> list[str]:
    """Those of qlinear_conv and qlinear_matmul: each tensor's, its scale and its zero point. The scales of weights are
    one number or lie along the axis ``along`` of the file's tensor."""
    made = []
    for value, tensor in ((x, n.tensor(0)), (w, n.tensor(1)), ("", n.output())):
        q, dtype = tensor.quantization, tensor.dtype
        assert q is not None and dtype is not None
        if not q.per_tensor and q.axis != along:
            n.refuse(
                f"its weights have scales along axis {q.axis}; vkconv has them along output channels, axis {along}"
            )
        made += [*([value] if value else []), *n.builder.scales(tensor.name, q, dtype)]
    return made


def _clamped(n: OpView, value: str) -> str | None:
    """The bytes behind the fused activation, where that changes none: converters choose the range so. None else."""
    code, tensor = n.option("FusedActivationFunction"), n.output()
    if code == _NOTHING:
        return value
    q, dtype = tensor.quantization, tensor.dtype
    assert q is not None and dtype is not None
    if code not in _BOUNDS:
        return None
    info, (low, high) = np.iinfo(dtype.numpy.name), _BOUNDS[code]
    scale, zero = float(q.scale[0]), int(q.zero[0])
    below = np.rint(low / scale) + zero <= int(info.min)
    return value if below and np.rint(high / scale) + zero >= int(info.max) else None


def conv(n: OpView, order: tuple[int, ...], attrs: dict[str, AttrValue]) -> bool:
    """A convolution in bytes, if it is one: it keeps them in and out. ``order`` brings weights to (O, I, H, W)."""
    if not _in_bytes(n):
        return False
    w = n.permuted(n.stored(1), order)
    operands = _operands(n, n.first(n.stored(0)), w, order[0])
    _finish(n, n.last(n.emit("qlinear_conv", *operands, *([n.stored(2)] if n.has(2) else []), **attrs)))
    return True


def _finish(n: OpView, value: str) -> None:
    """Bytes as the output, behind the fused activation."""
    clamped = _clamped(n, value)
    if clamped is not None:
        n.finish_stored(clamped)
        return
    tensor = n.output()
    assert tensor.quantization is not None and tensor.dtype is not None
    scales = n.builder.scales(tensor.name, tensor.quantization, tensor.dtype)
    n.finish(n.fused(n.emit("dequantize_linear", value, *scales)))


def fully_connected(n: OpView, rows: Callable[[str], str], keeps: bool) -> bool:
    """A product in bytes, if it is one, as a convolution of images of one pixel: that has a bias."""
    if not _in_bytes(n) or (keeps and n.rank(0) > 2):
        return False
    x = n.emit("unsqueeze", rows(n.stored(0)), axes=(2, 3))
    weights = n.const(1)
    assert weights is not None
    w = n.builder.constant(f"{n.tensor(1).name}/1x1", weights[:, :, None, None])
    operands = _operands(n, x, w, 0)
    y = n.emit("qlinear_conv", *operands, *([n.stored(2)] if n.has(2) else []))
    _finish(n, n.emit("squeeze", y, axes=(2, 3)))
    return True


def _quantize(n: OpView) -> None:
    """Floats to bytes, and bytes to those of another scale."""
    n.finish(n.x(0))


def _dequantize(n: OpView) -> None:
    array, tensor = n.const(0), n.tensor(0)
    if array is not None and (tensor.quantization is None or array.dtype.kind == "f"):
        n.finish_constant(array.astype(np.float32))  # weights in f16
    elif array is not None:
        n.finish_stored(n.x(0))
    elif tensor.dtype in (DType.F16, DType.BF16):
        n.finish(n.emit("cast", n.stored(0), to="f32"))
    else:
        n.finish(n.x(0))


def _densify(n: OpView) -> None:
    array = n.const(0)
    if array is None:
        n.refuse("it makes a sparse tensor dense that is no constant")
    n.finish_constant(array)


def _fake_quantize(n: OpView) -> None:
    """To ``num_bits`` between two bounds and back, as trained for: the identity but for rounding."""
    low, high, bits = n.option("Min", 0.0), n.option("Max", 0.0), n.option("NumBits", 8)
    if n.option("NarrowRange", False):
        n.refuse("a narrow range, which is for weights (LiteRT refuses it too); convert the model without it")
    if not (bits == 8 and low <= 0.0 < high):
        n.refuse(f"bounds {low:g} and {high:g} with {bits} bits; vkconv has 8 bits and bounds around 0")
    scale = (high - low) / 255
    q = Quantization(np.array([scale], np.float32), np.array([round(-low / scale)]), 0)
    scales = n.builder.scales(n.title, q, DType.U8)
    n.finish(n.emit("dequantize_linear", n.emit("quantize_linear", n.x(0), *scales), *scales))


RULES: dict[str, Rule] = {
    "DENSIFY": _densify,
    "DEQUANTIZE": _dequantize,
    "FAKE_QUANT": _fake_quantize,
    "QUANTIZE": _quantize,
}
