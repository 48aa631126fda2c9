"""Rows of PyTorch's profiler (``aten::mm [[32, 64], [64, 10]]``) as call strings.

They are its columns Name and Input Shapes (``record_shapes=True``, ``key_averages(group_by_input_shape=True)``), an
empty list for what is no tensor. A convolution's stride and padding are not among them and are written after it:
``aten::conv2d [[1, 64, 56, 56], [64, 64, 3, 3], [64]] stride=2 padding=1``.
"""

import ast
import re
from collections.abc import Mapping, Sequence

from vkconv.core import UsageError, shape_str
from vkconv.ops import OPS

_ROW = re.compile(r"aten::(\w+)\s+(\[.*\])((?:\s+\w+=[\w.x-]+)*)\s*")
_CONVOLUTIONS = ("conv2d", "convolution", "_convolution", "cudnn_convolution", "mkldnn_convolution")
_SETTINGS: Mapping[str, str] = {"stride": "s", "padding": "p", "dilation": "d", "groups": "g", "dtype": "dtype"}


def is_line(text: str) -> bool:
    """True for a row of the profiler."""
    return text.strip().startswith("aten::")


def calls(line: str) -> list[tuple[str, str]]:
    """The call of a row, and a note on what is assumed. Raises UsageError naming what vkconv does not take."""
    match = _ROW.fullmatch(line.strip())
    if match is None:
        raise UsageError(f"{line!r}: a row of PyTorch's profiler is written as aten::mm [[32, 64], [64, 10]]")
    try:
        read = ast.literal_eval(match[2])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise UsageError(f"{line!r}: {match[2][:80]} is no list of shapes") from None
    if not all(isinstance(shape, list) and all(type(d) is int and d >= 0 for d in shape) for shape in read):
        raise UsageError(f"{line!r}: {match[2][:80]} is no list of shapes")
    settings = dict(word.split("=", 1) for word in match[3].split())
    unknown = [name for name in settings if name not in _SETTINGS]
    if unknown:
        raise UsageError(f"{line!r}: {unknown[0]} is none of {', '.join(_SETTINGS)}")
    shapes = [shape_str(shape) for shape in read if shape]
    try:
        text, note = _call(match[1], shapes, settings)
    except (IndexError, ValueError):
        raise UsageError(f"{line!r}: aten::{match[1]} does not have {len(shapes)} tensors") from None
    except UsageError as error:
        raise UsageError(f"{line!r}: {error}") from None
    dtype = f",dtype={settings['dtype']}" if "dtype" in settings else ""
    return [(text + dtype, note)]


def _call(name: str, shapes: Sequence[str], settings: Mapping[str, str]) -> tuple[str, str]:
    if name in _CONVOLUTIONS:
        if not {"stride", "padding"} <= settings.keys():
            raise UsageError("the shapes do not tell stride and padding; write them after: stride=1 padding=1")
        x, w, *bias = shapes
        words = [f"{_SETTINGS[key]}={value}" for key, value in settings.items() if key != "dtype"]
        return ",".join([f"conv2d:x={x},w={w}", *(f"b={b}" for b in bias[:1]), *words]), ""
    if name in ("mm", "bmm", "matmul"):
        a, b = shapes
        return f"matmul:a={a},b={b}", ""
    if name == "addmm":
        added, a, b = shapes
        return f"matmul:a={a},b={b},bias={added}", ""
    if name == "linear":
        x, w, *bias = shapes
        return f"matmul:a={x},b={w},tb=1" + "".join(f",bias={b}" for b in bias), ""
    if name in ("softmax", "_softmax", "log_softmax", "_log_softmax"):
        return f"softmax:x={shapes[0]}" + ",log=1" * ("log" in name), "along the last axis: the shapes do not tell"
    op = name.rstrip("_")
    if op in OPS and [operand.name for operand in OPS[op].operands] in (["x"], ["a", "b"]):
        names = [operand.name for operand in OPS[op].operands]
        return f"{op}:" + ",".join(f"{key}={shape}" for key, shape in zip(names, shapes, strict=True)), ""
    raise UsageError(f"vkconv has no op for the shapes of aten::{name}")
