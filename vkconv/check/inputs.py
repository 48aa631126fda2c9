"""Inputs to check calls with, drawn from a seed."""

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from vkconv.call import Call
from vkconv.core import Array, DType, InputError, LimitError, Shape, UsageError, exact_bytes, shape_str
from vkconv.files import available_bytes
from vkconv.graph import Graph
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.single import WEIGHTS, call_graph, held_constant

Kind = Literal["normals", "specials"]

# What breaks kernels that treat it as any other number: GLSL leaves min, max and others undefined for NaN.
_SPECIALS = (np.nan, np.inf, -np.inf, -0.0, 0.0)
_SPECIAL_SHARE = 0.05
# Copies of operands and outputs on the host while a call is checked: as drawn, in float64, staged, compared.
HOST_COPIES = 8
_RANGES = {DType.BOOL: (0, 2), DType.I8: (-128, 128), DType.U8: (0, 256)}


def checked_call(text: str) -> Call:
    """The call of a text, to be checked. UsageError for one that does not read, or for which nothing runs; LimitError
    where the host has less memory free than that takes."""
    call = parse_call(text, OPS)
    if call.is_empty:
        raise UsageError(f"{text}: no output has an element: nothing runs, and there is nothing to check")
    if not OPS[call.op].routes:
        raise UsageError(f"{text}: nothing runs for {call.op}: it is computed when the graph is planned")
    refuse_beyond_memory(f"{text}: checking it", HOST_COPIES * OPS[call.op].compulsory_bytes(call))
    return call


def held(call: Call, arrays: Mapping[str, Array]) -> tuple[Graph, dict[str, Array]]:
    """The graph of a call, its weights being constants, and the inputs that are left."""
    constants = held_constant(arrays)
    return call_graph(call, constants), {name: array for name, array in arrays.items() if name not in constants}


def draw(call: Call, seed: int, kind: Kind = "normals") -> dict[str, Array]:
    """Inputs of a call: normal floats, bytes over their whole range, other integers from 0 to 3, bools; of
    ``specials``, every twentieth float is NaN, an infinity or a zero of either sign, but for weights. Raises LimitError
    where the host has less memory than they take."""
    refuse_beyond_memory(f"drawing inputs of {call.op}", _drawn_bytes(call))
    try:
        return _drawn(call, np.random.default_rng(seed), kind)
    except MemoryError as error:  # where a process may have less than the host has
        raise LimitError(f"inputs of {call.op} cannot be drawn: {error}; use smaller shapes") from None


def _drawn(call: Call, rng: np.random.Generator, kind: Kind) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for name, spec in call.operands.items():
        if spec is None:
            continue
        if spec.dtype.is_float:
            values = rng.standard_normal(spec.dims, np.float32)
            if kind == "specials" and name not in WEIGHTS:
                chosen = rng.random(spec.dims) < _SPECIAL_SHARE
                values = np.where(chosen, rng.choice(np.array(_SPECIALS, np.float32), spec.dims), values)
            arrays[name] = values.astype(spec.dtype.numpy, copy=False)
        else:
            low, high = _RANGES.get(spec.dtype, (0, 4))
            arrays[name] = rng.integers(low, high, spec.dims).astype(spec.dtype.numpy)
    return arrays


def _drawn_bytes(call: Call) -> int:
    """Bytes of the inputs of a call as they are drawn: floats of 32 bits and integers of 64, before they are cast."""
    specs = [spec for spec in call.operands.values() if spec is not None]
    return sum(spec.size * (4 if spec.dtype.is_float else 8) for spec in specs)


def refuse_beyond_memory(what: str, needed: int) -> None:
    """LimitError where the host has less memory free: past that it ends processes rather than refuse."""
    free = available_bytes()
    if free is not None and needed > free:
        raise LimitError(
            f"{what} takes about {exact_bytes(needed)} of host memory, of which {exact_bytes(free)} are free; "
            "use smaller shapes"
        )


def filled(name: str, fill: str, seed: int, shape: Shape, dtype: DType) -> Array:
    """An array for an input of a model: ``zeros``, ``ones``, or ``randn``, which is normal floats, integers from 0 to 9
    and bools. Raises InputError for one that cannot be."""
    try:
        refuse_beyond_memory("it", math.prod(shape) * (8 if fill == "randn" and not dtype.is_float else 4))
        if fill != "randn":
            values: Array = np.full(shape, int(fill == "ones"), np.float32)
        elif dtype.is_float:
            values = np.random.default_rng(seed).standard_normal(shape, np.float32)
        else:
            values = np.random.default_rng(seed).integers(0, 2 if dtype is DType.BOOL else 10, shape)
        return values.astype(dtype.numpy, copy=False)
    except (MemoryError, ValueError, LimitError) as error:
        raise InputError(f"input {name!r}: cannot make an array of shape {shape_str(shape)}: {error}") from None
