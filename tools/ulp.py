"""How far each scalar function is from float64, over every exponent: ``python tools/ulp.py [FUNCTION ...] [--write]``.

Runs every function of one variable and every arithmetic op of two on the device, in f32, f16 and bf16: zeros,
infinities, NaN and subnormal numbers of both signs, numbers of every exponent (in 16 bits of one variable: all there
are), and those around quarters. ``--write`` puts the table into docs/numbers.md, where tests/gpu/test_numbers.py holds
functions to it.
"""

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import vkconv
from vkconv.core import DType
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.ops import OPS
from vkconv.ops.core.activation import ACTIVATIONS
from vkconv.ops.pointwise import binary, unary

Values = npt.NDArray[Any]
PAGE = Path(__file__).parent.parent / "docs" / "numbers.md"
BEGIN, END = "<!-- tools/ulp.py -->\n", "<!-- end -->\n"
TYPES = (DType.F32, DType.F16, DType.BF16)
UNARY = tuple(op.name for op in unary.UNARY_OPS)
BINARY = tuple(row.name for row in binary.TABLE if "f" in row.kinds)
_NUMPY = {DType.F32: np.dtype(np.float32), DType.F16: np.dtype(np.float16), DType.BF16: np.dtype(ml_dtypes.bfloat16)}
_LEAST_EXPONENT = {DType.F32: -126, DType.F16: -14, DType.BF16: -126}
_SMALLEST_NORMAL_F32 = 2.0**-126


@dataclasses.dataclass(frozen=True)
class Errors:
    """Of one function in one type. ``ulp`` is the most in units of the last place of the result, of what cancels on
    the way where that is larger (`vkconv.ops.core.activation.Activation.cancelled`), and of the smallest normal number
    at least; ``at`` is where. ``flushed`` counts results that are off with a subnormal f32 among operands and results,
    as a device may have it that flushes them. ``wrong`` are inputs whose result is infinite, NaN, a zero or of a sign
    that the reference is not."""

    ulp: float
    at: tuple[float, ...]
    flushed: int
    wrong: tuple[tuple[float, ...], ...]


def bits_of(dtype: DType, per_exponent: int, rng: np.random.Generator) -> Values:
    """Numbers of a type as float64: the special ones, and ``per_exponent`` of each exponent and sign."""
    width, kind = dtype.mantissa_bits, _NUMPY[dtype]
    exponents = 2 ** (8 * kind.itemsize - 1 - width)
    mantissas = np.concatenate([[0, 1, 2**width - 1], rng.integers(0, 2**width, (exponents, per_exponent)).ravel()])
    every = np.concatenate([np.repeat(np.arange(exponents), 3), np.repeat(np.arange(exponents), per_exponent)])
    pattern = (every << width) | np.concatenate([np.tile(mantissas[:3], exponents), mantissas[3:]])
    unsigned = f"u{kind.itemsize}"
    positive = pattern.astype(unsigned).view(kind)
    near = np.concatenate([np.arange(0, 128, 0.25), np.pi * np.arange(1, 9) / 4, np.exp2(np.arange(-8, 8))]).astype(
        kind
    )
    around = np.concatenate([(near.view(unsigned) + np.array(step, unsigned)).view(kind) for step in (0, 1)])
    values = np.concatenate([positive, around])
    return np.concatenate([values, -values])


def operands(name: str, dtype: DType, per_exponent: int) -> list[Values]:
    """What a function is run on, in its type: pairs of far and of near exponents for one of two variables."""
    rng = np.random.default_rng(7)
    if name in UNARY:
        if dtype is not DType.F32:
            return [np.arange(65536, dtype=np.uint16).view(_NUMPY[dtype])]
        return [bits_of(dtype, per_exponent, rng)]
    a = bits_of(dtype, max(1, per_exponent // 4), rng)
    specials = np.array([0.0, -0.0, 1, -1, 0.5, 2, 3, -3, np.inf, -np.inf, np.nan, 2.0**-149, -(2.0**-130)], a.dtype)
    b = rng.permutation(a)
    with np.errstate(all="ignore"):
        near = (a.astype(np.float64) * rng.uniform(-4, 4, a.size)).astype(a.dtype)
    left = [a, a, np.repeat(specials, specials.size), np.repeat(a[::7], specials.size)]
    right = [b, near, np.tile(specials, specials.size), np.tile(specials, a[::7].size)]
    return [np.concatenate(left), np.concatenate(right)]


def run(name: str, given: list[Values], device: str) -> Values:
    names = tuple(operand.name for operand in OPS[name].operands)
    inputs = {key: TensorSpec(value.shape, _dtype(value)) for key, value in zip(names, given, strict=True)}
    graph = Graph(inputs, ("y",), (Node("n", name, names, ("y",), {}),), {})
    with vkconv.load(graph, device=device) as session:
        return np.asarray(session.run(dict(zip(names, given, strict=True)))["y"])


def _dtype(value: Values) -> DType:
    return next(dtype for dtype, kind in _NUMPY.items() if kind == value.dtype)


def reference(name: str, given: list[Values]) -> tuple[Values, Values]:
    """The result in float64, and what cancels on the way."""
    with np.errstate(all="ignore"):
        wide = [value.astype(np.float64) for value in given]
        if name in BINARY:
            return np.asarray(binary.ROWS[name].reference(*wide)), np.zeros(wide[0].shape)
        row, attrs = ACTIVATIONS[name], OPS[name].attrs
        a, b = (float(np.float32(attrs[i].default)) if i < len(attrs) else 0.0 for i in (0, 1))
        cancelled = row.cancelled(wide[0], a, b) if row.cancelled else np.zeros(wide[0].shape)
        return np.asarray(row.reference(wide[0], a, b)), np.asarray(cancelled)


def measure(name: str, dtype: DType, device: str = "auto", per_exponent: int = 64) -> Errors:
    given = operands(name, dtype, per_exponent)
    exact, cancelled = reference(name, given)
    with np.errstate(all="ignore"):
        got = run(name, given, device).astype(np.float64)
        stored = exact.astype(_NUMPY[dtype]).astype(np.float64)
        size = np.maximum(np.abs(exact), np.where(np.isfinite(cancelled), cancelled, 0.0))
        exponent = np.maximum(np.floor(np.log2(size)), _LEAST_EXPONENT[dtype])
        ulp = np.exp2(np.where(np.isfinite(exponent), exponent, 0) - dtype.mantissa_bits)
        off = np.where(np.isfinite(got) & np.isfinite(exact), np.abs(got - exact) / ulp, 0.0)
        # What Vulkan lets a device flush: subnormal f32 numbers, going in and coming out.
        tiny = [(value != 0) & (np.abs(value) < _SMALLEST_NORMAL_F32) for value in (*map(_wide, given), exact)]
        flushable = np.logical_or.reduce(tiny)
        # The largest number may round to infinity, and the other way round.
        edge = np.abs(exact) >= float(_finfo_max(dtype)) * (1 - 2.0**-dtype.mantissa_bits)
        kind = (np.isnan(got) != np.isnan(stored)) | ((np.isinf(got) != np.isinf(stored)) & ~edge)
        sign = ~np.isnan(stored) & (np.signbit(got) != np.signbit(stored)) & ((got == 0) == (stored == 0))
    flushed = flushable & ((off > 0.51 * (1 + (dtype is DType.F32))) | kind) & (got != stored)
    wrong = (kind | sign) & ~flushed
    off = np.where(flushed, 0.0, off)
    worst = int(np.argmax(off))
    return Errors(
        float(off[worst]),
        tuple(float(value[worst]) for value in given),
        int(flushed.sum()),
        tuple(tuple(float(value[i]) for value in given) for i in np.flatnonzero(wrong)),
    )


def _wide(value: Values) -> Values:
    return value.astype(np.float64)


def _finfo_max(dtype: DType) -> float:
    return float(ml_dtypes.finfo(_NUMPY[dtype]).max)


def rows(names: tuple[str, ...], device: str, per_exponent: int) -> Iterator[tuple[str, dict[DType, Errors]]]:
    for name in names:
        yield name, {dtype: measure(name, dtype, device, per_exponent) for dtype in TYPES}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("functions", nargs="*", metavar="FUNCTION", help="default: all")
    parser.add_argument("--write", action="store_true", help="put the table into docs/numbers.md")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--per-exponent", type=int, default=256, help="random numbers of each exponent and sign")
    options = parser.parse_args()
    names = tuple(options.functions) or (*UNARY, *BINARY)
    lines = [
        "| function | f32, ulp | at | f16, ulp | bf16, ulp |",
        "| --- | --- | --- | --- | --- |",
    ]
    wrong = 0
    print("\n".join(lines))
    for name, errors in rows(names, options.device, options.per_exponent):
        at = ", ".join(f"{value:.6g}" for value in errors[DType.F32].at)
        cells = [f"{errors[d].ulp + 0.005:.2f}" for d in TYPES]
        lines.append(f"| {name} | {cells[0]} | {at} | {cells[1]} | {cells[2]} |")
        print(lines[-1], flush=True)
        for dtype, found in errors.items():
            wrong += len(found.wrong)
            if found.wrong:
                print(f"  {dtype}: {len(found.wrong)} of another kind or sign, as at {found.wrong[:4]}")
            if found.flushed:
                print(f"  {dtype}: {found.flushed} flushed")
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN)
        after = rest.split(END)[1]
        PAGE.write_text(before + BEGIN + "\n" + "\n".join(lines) + "\n\n" + END + after, encoding="utf-8")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
