"""Import rules for ops that move values, and for those that compute shapes."""

from functools import partial

import numpy as np

from vkconv.core import DType
from vkconv.graph.ir import AttrValue
from vkconv.graph.onnx.elementwise import Rule
from vkconv.graph.onnx.random import dropped
from vkconv.graph.onnx.view import NodeView


def _identity(n: NodeView) -> None:
    if n.const(0) is not None and n.outputs[0] not in n.builder.results:
        n.builder.alias[n.outputs[0]] = n.input(0)
    else:
        n.finish("identity", n.input(0))


def _dropout(n: NodeView) -> None:
    """The identity at inference, and in training where nothing is dropped; the mask then says that all stay. What
    is constantly in training drops."""
    n.ignore("ratio", "is_test")
    training, ratio = n.const_scalar(2), n.const_scalar(1) if n.has(1) else 0.5
    if training and ratio != 0.0:
        dropped(n, n.input(1) or n.number(0.5, DType.F32))
        return
    n.ignore("seed")
    if not n.has(2) or training is not None:
        n.write(0, "identity", n.input(0))
    else:
        n.write(0, "dropout", n.input(0), n.input(1) or n.number(0.5, DType.F32), n.input(2))
    if len(n.outputs) > 1 and n.outputs[1] in n.builder.consumed:
        mask = DType.BOOL if n.version >= 10 else n.dtype(0)
        n.write(1, "constant_of_shape", n.emit("shape", n.input(0)), value=1.0, dtype=str(mask))


def _reshape(n: NodeView) -> None:
    inputs, attrs = n.host(shape=1)
    if n.attr_flag("allowzero"):
        attrs["allowzero"] = True
    n.finish("reshape", n.input(0), *inputs, **attrs)


def _flatten(n: NodeView) -> None:
    n.finish("flatten", n.input(0), axis=n.attr_int("axis", 1))


def _axes(op: str, n: NodeView) -> None:
    """squeeze and unsqueeze: axes moved from an attribute to an input with opset 13."""
    inputs, attrs = n.host(axes=1) if n.version >= 13 else _as_attr(n, "axes", "axes")
    n.finish(op, n.input(0), *inputs, **attrs)


def _as_attr(n: NodeView, name: str, to: str) -> tuple[list[str], dict[str, AttrValue]]:
    """What `NodeView.host` gives, for opsets in which the operand is an attribute."""
    return [], {to: n.attr_ints(name)} if n.has_attr(name) else {}


def _transpose(n: NodeView) -> None:
    n.finish("transpose", n.input(0), **_as_attr(n, "perm", "perm")[1])


def _concat(n: NodeView) -> None:
    n.finish("concat", *(n.input(i) for i in range(len(n.inputs))), axis=n.attr_int("axis", 1))


def _slice(n: NodeView) -> None:
    if n.version < 10:
        attrs = {name: n.attr_ints(name) for name in ("starts", "ends", "axes") if n.has_attr(name)}
        n.finish("slice", n.input(0), **attrs)
        return
    inputs, found = n.host(starts=1, ends=2, axes=3, steps=4)
    n.finish("slice", n.input(0), *inputs, **found)


def _split(n: NodeView) -> None:
    n.ignore("num_outputs")  # as many as the node has outputs, which every opset says
    inputs, attrs = n.host(sizes=1) if n.version >= 13 else _as_attr(n, "split", "sizes")
    n.finish("split", n.input(0), *inputs, axis=n.attr_int("axis", 0), num_outputs=len(n.outputs), **attrs)


def _expand(n: NodeView) -> None:
    inputs, attrs = n.host(shape=1)
    n.finish("expand", n.input(0), *inputs, **attrs)


def _tile(n: NodeView) -> None:
    inputs, attrs = n.host(repeats=1)
    n.finish("tile", n.input(0), *inputs, **attrs)


def _pad(n: NodeView) -> None:
    mode = n.attr_str("mode", "constant")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        n.refuse(f"mode={mode!r}; vkconv has constant, reflect, edge and wrap")
    if n.version < 11:
        n.finish("pad", n.input(0), mode=mode, pads=n.attr_ints("pads"), value=n.attr_float("value", 0.0))
        return
    inputs, attrs = n.host("value", pads=1, value=2, axes=3)
    n.finish("pad", n.input(0), *inputs, mode=mode, **attrs)


def _gather(n: NodeView) -> None:
    n.finish("gather", n.input(0), n.input(1), axis=n.attr_int("axis", 0))


def _shape(n: NodeView) -> None:
    n.finish("shape", n.input(0), **{name: n.attr_int(name, 0) for name in ("start", "end") if n.has_attr(name)})


def _size(n: NodeView) -> None:
    n.finish("size", n.input(0))


def _constant(n: NodeView) -> None:
    for name, dtype in (("value_float", DType.F32), ("value_int", DType.I64)):
        if n.has_attr(name):
            number = n.attr_float(name, 0.0) if dtype.is_float else n.attr_int(name, 0)
            n.builder.constants[n.outputs[0]] = np.asarray(number, dtype.numpy)
            return
    for name, dtype in (("value_floats", DType.F32), ("value_ints", DType.I64)):
        if n.has_attr(name):
            n.builder.constants[n.outputs[0]] = np.asarray(
                n.attr_floats(name) if dtype.is_float else n.attr_ints(name), dtype.numpy
            )
            return
    if not n.has_attr("value"):
        n.refuse(f"it holds {', '.join(n.attrs) or 'no value'}; vkconv reads numeric tensors")
    n.builder.constants[n.outputs[0]] = n.attr_tensor("value")


def _constant_of_shape(n: NodeView) -> None:
    fill = n.attr_tensor("value") if n.has_attr("value") else np.zeros(1, np.float32)
    if fill.size != 1:
        n.refuse(f"its value has {fill.size} elements; ONNX wants one")
    exact = fill.reshape(-1)[0].item()
    value = float(exact)
    if value != exact and not np.isnan(value):
        n.refuse(f"its value {exact} is not exact as a float, which is how vkconv holds it")
    inputs, attrs = n.host(shape=0)
    n.finish("constant_of_shape", *inputs, **attrs, value=value, dtype=str(DType.of(fill.dtype)))


def _range(n: NodeView) -> None:
    n.ignore("stash_type")  # of 16-bit floats
    n.finish("range", *(n.input(i) for i in range(3)), dtype=str(n.dtype(0)))


RULES: dict[str, Rule] = {
    "Identity": _identity,
    "Dropout": _dropout,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": partial(_axes, "squeeze"),
    "Unsqueeze": partial(_axes, "unsqueeze"),
    "Transpose": _transpose,
    "Concat": _concat,
    "Slice": _slice,
    "Split": _split,
    "Expand": _expand,
    "Tile": _tile,
    "Pad": _pad,
    "Gather": _gather,
    "Shape": _shape,
    "Size": _size,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
}
