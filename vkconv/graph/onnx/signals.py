"""Import rules for Fourier transforms: a product with the matrix of the transform, which is made of ops that the
planner folds once the length is known. That is right for frames of sound, not for lengths of many thousands."""

import math

import numpy as np

from vkconv.core import DType
from vkconv.graph.onnx.elementwise import Rule
from vkconv.graph.onnx.proto import dtype_of
from vkconv.graph.onnx.view import NodeView

_END = (1 << 63) - 1


def _i64(n: NodeView, value: int) -> str:
    return n.number(value, DType.I64)


def _size(n: NodeView, value: str, axis: int) -> str:
    """The size of a value along an axis."""
    return n.emit("gather", n.emit("shape", value), _i64(n, axis), axis=0)


def _count(n: NodeView, end: str, axis: int) -> str:
    """0, 1, ... before ``end``, as a column (axis 1) or a row (axis 0)."""
    numbers = n.emit("range", _i64(n, 0), end, _i64(n, 1), dtype="i64")
    return n.emit("unsqueeze", numbers, axes=(axis,))


def _tables(n: NodeView, rows: str, columns: str, length: str) -> tuple[str, str, str]:
    """Cosines and sines of 2 pi r c / length for each row r and column c, and the length as a float. Quarters of a turn
    are counted in integers, so that what is 0 or 1 is so exactly."""
    turns = n.emit("mod", n.emit("mul", _count(n, rows, 1), _count(n, columns, 0)), length)
    whole = n.emit("cast", length, to="f32")
    step = n.emit("div", n.number(math.pi / 2, DType.F32), whole)
    quarters = n.emit("mul", turns, _i64(n, 4))
    sine = _sine(n, quarters, length, step)
    cosine = _sine(n, n.emit("add", quarters, length), length, step)
    return cosine, sine, whole


def _sine(n: NodeView, quarters: str, length: str, step: str) -> str:
    """sin(pi / 2 quarters / length), ``step`` being pi / 2 / length."""
    quadrant = n.emit("div", quarters, length)
    rest = n.emit("sub", quarters, n.emit("mul", quadrant, length))
    angle = n.emit("mul", n.emit("cast", rest, to="f32"), step)
    odd = n.emit("equal", n.emit("mod", quadrant, _i64(n, 2)), _i64(n, 1))
    value = n.emit("where", odd, n.emit("cos", angle), n.emit("sin", angle))
    turned = n.emit("equal", n.emit("mod", n.emit("div", quadrant, _i64(n, 2)), _i64(n, 2)), _i64(n, 1))
    return n.emit("where", turned, n.emit("neg", value), value)


def _transform(
    n: NodeView, x: str, parts: int, perm: tuple[int, ...], length: str, inverse: bool, onesided: bool, dtype: str
) -> str:
    """The transform along the last axis but one of ``perm``, which moves it behind the complex one; that one has
    ``parts`` elements, the real one and the imaginary one."""
    x = n.emit("transpose", x, perm=perm)  # [..., parts, N]
    bins = n.emit("add", n.emit("div", length, _i64(n, 2)), _i64(n, 1))
    used = bins if inverse and onesided else length
    ends = n.emit("unsqueeze", used, axes=(0,))
    x = n.emit("slice", x, n.ints(0), ends, n.ints(-1))  # what is missing up to the length is zeros, and adds nothing
    columns = bins if onesided and not inverse else length
    rows = _size(n, x, -1)
    cosine, sine, whole = _tables(n, rows, columns, length)
    if inverse:
        factor = n.emit("div", n.number(1.0, DType.F32), whole)
        if onesided:  # what has a mirror image counts twice
            factor = n.emit("mul", factor, _mirrored(n, rows, length))
        cosine, sine = (n.emit("mul", table, factor) for table in (cosine, sine))
    else:
        sine = n.emit("neg", sine)
    # (a + ib)(c + is) = (ac - bs) + i(as + bc)
    if parts == 1:
        matrix = cosine if inverse and onesided else n.emit("concat", cosine, sine, axis=1)
    else:
        real, imaginary = (n.emit("slice", x, starts=(i,), ends=(i + 1,), axes=(len(perm) - 2,)) for i in range(2))
        x = n.emit("concat", real, imaginary, axis=-1)
        above = cosine if inverse and onesided else n.emit("concat", cosine, sine, axis=1)
        minus = n.emit("neg", sine)
        below = minus if inverse and onesided else n.emit("concat", minus, cosine, axis=1)
        matrix = n.emit("concat", above, below, axis=0)
    if dtype != "f32":
        matrix = n.emit("cast", matrix, to=dtype)
    y = n.emit("matmul", x, matrix)
    if not (inverse and onesided):
        halves = n.emit_pair("split", y, axis=-1, num_outputs=2)
        y = n.emit("concat", *halves, axis=-2)
    back = [perm.index(i) for i in range(len(perm))]
    return n.emit("transpose", y, perm=tuple(back))


def _mirrored(n: NodeView, rows: str, length: str) -> str:
    """2 for each bin, 1 for the first and for the last of an even length."""
    bins = _count(n, rows, 1)
    single = n.emit("equal", n.emit("mod", n.emit("mul", bins, _i64(n, 2)), length), _i64(n, 0))
    return n.emit("sub", n.number(2.0, DType.F32), n.emit("cast", single, to="f32"))


def _parts(n: NodeView) -> int:
    """1 of a real signal, 2 of a complex one: its last dimension."""
    dims = n.dims(0)
    if not dims or dims[-1] not in (1, 2):
        n.refuse("its input must end with a dimension of 1 (real) or 2 (complex) that the model fixes")
    return int(dims[-1])


def _dft(n: NodeView) -> None:
    inverse, onesided = n.attr_flag("inverse"), n.attr_flag("onesided")
    rank, parts = n.need_rank(0), _parts(n)
    axis = n.attr_int("axis", 1)
    if n.version >= 20:
        given = n.const_scalar(2) if n.has(2) else -2
        if given is None:
            n.refuse("its axis is computed at run time; vkconv needs a constant one")
        axis = int(given)
    if not -rank <= axis < rank or axis % rank == rank - 1:
        n.refuse(f"axis {axis} of an input of {rank} dimensions, the last of which holds real and imaginary parts")
    axis %= rank
    if n.has(1):
        length = n.input(1) if n.rank(1) == 0 else n.emit("reshape", n.input(1), shape=())
    else:
        length = _size(n, n.input(0), axis)
        if inverse and onesided:
            length = n.emit("mul", n.emit("sub", length, _i64(n, 1)), _i64(n, 2))
    perm = (*(i for i in range(rank - 1) if i != axis), rank - 1, axis)
    n.finish("identity", _transform(n, n.input(0), parts, perm, length, inverse, onesided, str(n.dtype(0))))


def _stft(n: NodeView) -> None:
    """Of a real signal torch's older exporter leaves the dimension of parts out, and ONNX Runtime takes that."""
    rank = n.need_rank(0)
    if rank not in (2, 3):
        n.refuse(f"a signal of {rank} dimensions; it has batch, length and parts, or the first two where it is real")
    parts = _parts(n) if rank == 3 else 1
    signal = n.input(0) if rank == 3 else n.emit("unsqueeze", n.input(0), axes=(2,))
    scalar = [n.input(i) if n.rank(i) == 0 or not n.has(i) else n.emit("reshape", n.input(i), shape=()) for i in (1, 3)]
    if not n.has(2) and not n.has(3):
        n.refuse("neither a window nor frame_length says how long a frame is")
    length = scalar[1] if n.has(3) else _size(n, n.input(2), 0)
    last = n.emit("add", n.emit("sub", _size(n, signal, 1), length), _i64(n, 1))
    starts = n.emit("range", _i64(n, 0), last, scalar[0], dtype="i64")
    places = n.emit("add", n.emit("unsqueeze", starts, axes=(1,)), _count(n, length, 0))
    frames = n.emit("gather", signal, places, axis=1)  # [batch, frames, length, parts]
    if n.has(2):
        frames = n.emit("mul", frames, n.emit("unsqueeze", n.input(2), axes=(1,)))
    onesided = n.attr_flag("onesided", True)
    dtype = str(n.dtype(0))
    n.finish("identity", _transform(n, frames, parts, (0, 1, 3, 2), length, False, onesided, dtype))


def _mel_weights(n: NodeView) -> None:
    """The matrix itself: triangles that overlap by half on the scale of O'Shaughnessy, as ONNX defines them."""
    given = [n.const_scalar(i) for i in range(5)]
    if any(value is None for value in given):
        n.refuse("one of its inputs is computed at run time; vkconv needs constant ones")
    bins, length, rate, low, high = (float(value or 0.0) for value in given)
    if bins < 1 or length < 1 or rate <= 0 or not 0 <= low < high:
        n.refuse(f"{bins:g} bins of {length:g} samples at {rate:g} Hz from {low:g} to {high:g} Hz")
    mel_low, mel_high = (2595 * math.log10(1 + edge / 700) for edge in (low, high))
    edges = np.arange(int(bins) + 2) * ((mel_high - mel_low) / (bins + 2)) + mel_low
    places = (length + 1) * 700 * (10 ** (edges / 2595) - 1) // rate
    if places[-1] > length // 2 + 1:
        n.refuse(f"{high:g} Hz lies above half of {rate:g} Hz, the highest frequency of a spectrum")
    row = np.arange(int(length) // 2 + 1)[:, None]
    left, center, right = places[:-2], places[1:-1], places[2:]
    with np.errstate(divide="ignore", invalid="ignore"):
        rising = np.where(center > left, (row - left) / (center - left), 1.0)
        falling = (right - row) / (right - center)
    weights = np.where((row >= left) & (row <= center), rising, 0.0)
    weights = np.where((row >= center) & (row < right), falling, weights)
    dtype = dtype_of(n.attr_int("output_datatype", 1), "makes")
    n.finish("identity", n.number(weights, dtype))


RULES: dict[str, Rule] = {"DFT": _dft, "MelWeightMatrix": _mel_weights, "STFT": _stft}
