"""Import rules for ops that move values, those that compute shapes, and reductions."""

from functools import partial

import numpy as np

from vkconv.core import DType
from vkconv.graph.ir import AttrValue
from vkconv.graph.tflite.reader import DTYPES
from vkconv.graph.tflite.view import OpView, Rule

_BEFORE_ALL, _BEHIND_ALL = -(1 << 31), (1 << 31) - 1


def _same_scale(n: OpView, *inputs: int) -> bool:
    """Whether outputs are stored as operands are, so that what moves needs no computing."""
    tensors = [n.tensor(i) for i in inputs] + [n.output(i) for i in range(len(n.op.outputs))]
    if len({t.dtype for t in tensors}) != 1:
        return False
    quantizations = [t.quantization for t in tensors]
    if any(q is None or not q.per_tensor for q in quantizations):
        return all(q is None for q in quantizations)
    return len({(float(q.scale[0]), int(q.zero[0])) for q in quantizations if q is not None}) == 1


def _moved(n: OpView, op: str, *more: str, **attrs: AttrValue) -> None:
    """The op on operand 0, on the bytes themselves where they mean the same before and after."""
    if _same_scale(n, 0):
        n.finish_stored(n.emit(op, n.stored(0), *more, **attrs))
    else:
        n.finish(n.emit(op, n.x(0), *more, **attrs))


def _reshape(n: OpView) -> None:
    """Its shape is an operand, a field of the options in old files, or that of the output."""
    if n.has(1) and n.const(1) is not None:
        shape = n.ints(1, "shape")
    elif all(d is not None for d in n.output().dims):
        shape = tuple(d for d in n.output().dims if d is not None)
    elif n.has(1):
        inputs, _ = n.host(shape=1)
        _moved(n, "reshape", *inputs)
        return
    else:
        n.refuse("the shape that it makes is open; convert the model with a fixed input shape")
    if n.const(0) is not None and n.const(0) is n.tensor(0).data and -1 not in shape:
        array = n.const(0)
        assert array is not None
        if array.size == int(np.prod(shape)) and n.tensor(0).quantization is None:
            n.finish_constant(array.reshape(shape))
            return
    _moved(n, "reshape", shape=shape, allowzero=0 in shape)


def _squeeze(n: OpView) -> None:
    options = n.op.options
    axes = (
        tuple(n.axis(int(a), n.rank(0)) for a in options.SqueezeDimsAsNumpy()) if _has(options, "SqueezeDims") else ()
    )
    _moved(n, "squeeze", **({"axes": axes} if axes else {}))


def _has(options: object, vector: str) -> bool:
    length = getattr(options, f"{vector}Length", None)
    count = length() if length else 0
    return 0 < count <= 64


def _expand_dims(n: OpView) -> None:
    rank = n.rank(0) + 1
    _moved(n, "unsqueeze", axes=tuple(n.axis(a, rank) for a in n.ints(1, "axis")))


def _transpose(n: OpView) -> None:
    perm = n.ints(1, "order of dimensions")
    _moved(n, "transpose", perm=tuple(n.axis(p, n.rank(0)) for p in perm))


def _concat(n: OpView) -> None:
    every, axis = range(len(n.op.inputs)), n.axis(n.option("Axis"), n.output().rank)
    if _same_scale(n, *every) and not n.option("FusedActivationFunction"):
        n.finish_stored(n.emit("concat", *(n.stored(i) for i in every), axis=axis))
    else:
        n.finish(n.fused(n.emit("concat", *(n.x(i) for i in every), axis=axis)))


def _parts(n: OpView, operand: int, axis: int, sizes: tuple[int, ...] | None) -> list[str]:
    """Operand cut along an axis, equally or into sizes; the values of the parts."""
    value, count, parts = n.x(operand), len(n.op.outputs), []
    dim = n.tensor(operand).dims[axis]
    if dim is None:
        n.refuse("the dimension that it cuts is open; convert the model with a fixed input shape")
    if sizes is None:
        sizes = (dim // count,) * count
    elif -1 in sizes:
        left = dim - sum(s for s in sizes if s >= 0)
        sizes = tuple(left if s < 0 else s for s in sizes)
    at = 0
    for size in sizes[:count]:
        parts.append(n.emit("slice", value, starts=(at,), ends=(at + size,), axes=(axis,)))
        at += size
    return parts


def _split(n: OpView) -> None:
    """Operands: axis, x."""
    axis = n.axis(n.ints(0, "axis")[0], n.rank(1))
    for i, part in enumerate(_parts(n, 1, axis, None)):
        n.finish(part, i)


def _split_v(n: OpView) -> None:
    """Operands: x, sizes, axis."""
    axis = n.axis(n.ints(2, "axis")[0], n.rank(0))
    for i, part in enumerate(_parts(n, 0, axis, n.ints(1, "sizes"))):
        n.finish(part, i)


def _pack(n: OpView) -> None:
    axis = n.axis(n.option("Axis"), n.output().rank)
    every = range(len(n.op.inputs))
    arrays = [n.const(i) for i in every]
    if all(a is not None for a in arrays) and _same_scale(n, *every):
        n.finish_constant(np.stack([a for a in arrays if a is not None], axis))
        return
    n.finish(n.emit("concat", *(n.emit("unsqueeze", n.x(i), axes=(axis,)) for i in every), axis=axis))


def _unpack(n: OpView) -> None:
    axis = n.axis(n.option("Axis"), n.rank(0))
    for i, part in enumerate(_parts(n, 0, axis, (1,) * len(n.op.outputs))):
        n.finish(n.emit("squeeze", part, axes=(axis,)), i)


def _slice(n: OpView) -> None:
    starts, sizes = n.ints(1, "starts"), n.ints(2, "sizes")
    ends = tuple(_BEHIND_ALL if size < 0 else start + size for start, size in zip(starts, sizes, strict=False))
    _moved(n, "slice", starts=starts, ends=ends, axes=tuple(range(len(starts))))


def _strided_slice(n: OpView) -> None:
    if n.option("EllipsisMask") or n.option("NewAxisMask"):
        n.refuse("an ellipsis or a new axis in its slices; convert the model with a newer converter")
    starts, ends, steps = n.ints(1, "starts"), n.ints(2, "ends"), n.ints(3, "strides")
    if not len(starts) == len(ends) == len(steps) <= n.rank(0) or 0 in steps:
        n.refuse(f"starts {starts}, ends {ends} and strides {steps} do not fit rank {n.rank(0)}")
    gone = n.option("ShrinkAxisMask")
    first, last = list(starts), list(ends)
    for axis, step in enumerate(steps):
        if gone >> axis & 1:
            last[axis] = first[axis] + 1 if first[axis] != -1 else _BEHIND_ALL
            continue
        if n.option("BeginMask") >> axis & 1:
            first[axis] = 0 if step > 0 else _BEHIND_ALL
        if n.option("EndMask") >> axis & 1:
            last[axis] = _BEHIND_ALL if step > 0 else _BEFORE_ALL
    axes = tuple(range(len(starts)))
    array = n.const(0)
    shrunk = tuple(axis for axis in axes if gone >> axis & 1)
    if array is not None and n.tensor(0).quantization is None and array.ndim == 1 and steps == (1,):
        part = array[first[0] : last[0]]  # an element or a part of a constant shape
        n.finish_constant(part[0] if shrunk and part.size else part)
        return
    steps = tuple(1 if axis in shrunk else step for axis, step in enumerate(steps))
    value, same = n.stored(0), _same_scale(n, 0)
    value = n.emit("slice", value if same else n.x(0), starts=tuple(first), ends=tuple(last), axes=axes, steps=steps)
    if shrunk:
        value = n.emit("squeeze", value, axes=shrunk)
    (n.finish_stored if same else n.finish)(value)


def _pad(n: OpView) -> None:
    edges = np.asarray(n.ints(1, "paddings")).reshape(-1, 2)
    if len(edges) != n.rank(0):
        n.refuse(f"{len(edges)} pairs of paddings for rank {n.rank(0)}")
    pads = (*(int(v) for v in edges[:, 0]), *(int(v) for v in edges[:, 1]))
    if n.op.name == "MIRROR_PAD":
        if n.option("Mode"):
            n.refuse("mode SYMMETRIC; vkconv has REFLECT")
        _moved(n, "pad", pads=pads, mode="reflect")
    elif n.op.name == "PADV2":
        value = n.const(2)
        if value is None or value.size != 1:
            n.refuse("the value that it pads with is computed; vkconv has a constant there")
        q = n.tensor(2).quantization
        number = float(value.reshape(-1)[0])
        if q is not None and value.dtype.kind != "f":
            number = (number - float(q.zero[0])) * float(q.scale[0])
        n.finish(n.emit("pad", n.x(0), pads=pads, value=number))
    else:
        n.finish(n.emit("pad", n.x(0), pads=pads))


def _tile(n: OpView) -> None:
    inputs, attrs = n.host(repeats=1)
    _moved(n, "tile", *inputs, **attrs)


def _broadcast_to(n: OpView) -> None:
    inputs, attrs = n.host(shape=1)
    _moved(n, "expand", *inputs, **attrs)


def _gather(n: OpView) -> None:
    if n.option("BatchDims"):
        n.refuse("batch dimensions; vkconv gathers along one axis")
    n.finish(n.emit("gather", n.x(0), n.stored(1), axis=n.axis(n.option("Axis"), n.rank(0))))


def _gather_nd(n: OpView) -> None:
    n.finish(n.emit("gather_nd", n.x(0), n.emit("cast", n.stored(1), to="i64")))


def _shape(n: OpView) -> None:
    to = n.output().dtype or DType.I32
    dims = n.tensor(0).dims
    known = tuple(d for d in dims if d is not None)
    if len(known) == len(dims):
        n.finish_constant(np.asarray(known, to.numpy))
    else:
        n.finish_stored(n.emit("cast", n.emit("shape", n.stored(0)), to=str(to)))


def _fill(n: OpView) -> None:
    """Operands: shape, value."""
    inputs, attrs = n.host(shape=0)
    n.finish(n.emit("expand", n.x(1), *inputs, **attrs))


def _range(n: OpView) -> None:
    arrays = [n.const(i) for i in range(3)]
    if any(a is None or a.size != 1 for a in arrays):
        n.refuse("its bounds are computed; vkconv has constant ones there")
    start, limit, step = (a.reshape(-1)[0].item() for a in arrays if a is not None)
    if not step or not abs((limit - start) / step) < 1 << 24:
        n.refuse(f"it counts from {start} to {limit} by {step}")
    n.finish_constant(np.arange(start, limit, step).astype(n.dtype(0).numpy))


def _reverse(n: OpView) -> None:
    axes = tuple(n.axis(a, n.rank(0)) for a in n.ints(1, "axes"))
    far = (_BEFORE_ALL,) * len(axes)
    _moved(n, "slice", starts=(_BEHIND_ALL,) * len(axes), ends=far, axes=axes, steps=(-1,) * len(axes))


def _reduce(op: str, n: OpView) -> None:
    keepdims = bool(n.option("KeepDims", False))
    axes = tuple(sorted({n.axis(a, n.rank(0)) for a in n.ints(1, "axes")}))
    x = n.x(0)
    if not axes:
        n.finish(x)
    elif op in ("any", "all"):
        made = n.emit("reduce", n.emit("cast", x, to="i32"), op="max" if op == "any" else "min", axes=axes,
                      keepdims=keepdims)  # fmt: skip
        n.finish(n.emit("cast", made, to="bool"))
    else:
        n.finish(n.emit("reduce", x, op=op, axes=axes, keepdims=keepdims))


def _arg_reduce(op: str, n: OpView) -> None:
    to = DTYPES.get(n.option("OutputType"), DType.I64)
    axis = n.axis(n.ints(1, "axis")[0], n.rank(0))
    n.finish(n.emit("arg_reduce", n.x(0), op=op, axis=axis, keepdims=False, dtype=str(to)))


def _cumsum(n: OpView) -> None:
    axis = n.axis(n.ints(1, "axis")[0], n.rank(0))
    flags = {"exclusive": bool(n.option("Exclusive", False)), "reverse": bool(n.option("Reverse", False))}
    n.finish(n.emit("cumulative", n.x(0), axis=axis, op="sum", **flags))


RULES: dict[str, Rule] = {
    "ARG_MAX": partial(_arg_reduce, "max"),
    "ARG_MIN": partial(_arg_reduce, "min"),
    "BROADCAST_TO": _broadcast_to,
    "CONCATENATION": _concat,
    "CUMSUM": _cumsum,
    "EXPAND_DIMS": _expand_dims,
    "FILL": _fill,
    "GATHER": _gather,
    "GATHER_ND": _gather_nd,
    "MEAN": partial(_reduce, "mean"),
    "MIRROR_PAD": _pad,
    "PACK": _pack,
    "PAD": _pad,
    "PADV2": _pad,
    "RANGE": _range,
    "REDUCE_ALL": partial(_reduce, "all"),
    "REDUCE_ANY": partial(_reduce, "any"),
    "REDUCE_MAX": partial(_reduce, "max"),
    "REDUCE_MIN": partial(_reduce, "min"),
    "REDUCE_PROD": partial(_reduce, "prod"),
    "RESHAPE": _reshape,
    "REVERSE_V2": _reverse,
    "SHAPE": _shape,
    "SLICE": _slice,
    "SPLIT": _split,
    "SPLIT_V": _split_v,
    "SQUEEZE": _squeeze,
    "STRIDED_SLICE": _strided_slice,
    "SUM": partial(_reduce, "sum"),
    "TILE": _tile,
    "TRANSPOSE": _transpose,
    "UNPACK": _unpack,
}
