"""Calls drawn at random for fits of policies: what networks have, by sizes that no suite's list gives.

A draw is a function of a generator of random numbers to the string of a call. Sizes are drawn by their logarithm, so
that small ones are as frequent as large ones.
"""

import math
import random
from collections.abc import Mapping

from draws_conv import (
    FLOPS,
    Draw,
    convolutions,
    data_gradients,
    depthwise,
    fully_connected,
    grouped,
    log_size,
    patches,
    stems,
    transposed,
    weight_gradients,
)


def products(
    rows: tuple[int, int] = (1, 2000), most: float = FLOPS, dtype: str = "f32", sides: tuple[int, int] = (16, 4000)
) -> Draw:
    def draw(r: random.Random) -> str:
        while True:
            m, k, n = log_size(r, *rows), log_size(r, *sides), log_size(r, *sides)
            if m * k * n <= most and (m * k + k * n + m * n) <= 3e7:
                transposed_b = r.random() < 0.5
                b = f"{n}x{k},tb=1" if transposed_b else f"{k}x{n}"
                return f"matmul:a={m}x{k},b={b},dtype={dtype}"

    return draw


def few_bits(most: float = 2e8) -> Draw:
    def draw(r: random.Random) -> str:
        while True:
            m, blocks, n = log_size(r, 1, 300), log_size(r, 2, 70), log_size(r, 64, 3000)
            if m * 32 * blocks * n <= most:
                return f"matmul_nbits:a={m}x{32 * blocks},b={n}x{blocks}x16:u8,scale={n}x{blocks}"

    return draw


def rows_of(ops: tuple[str, ...] = ("softmax", "layer_norm"), dtype: str = "f32", most: float = 2e7) -> Draw:
    def draw(r: random.Random) -> str:
        while True:
            count, length = log_size(r, 1, 400000), log_size(r, 3, 100000)
            if 2000 <= count * length <= most:
                op = r.choice(ops)
                if op == "softmax" and r.random() < 0.2:
                    apart = log_size(r, 8, 5000)
                    if length <= 64:
                        return f"softmax:x={max(1, count // apart)}x{length}x{apart},axis=1,dtype={dtype}"
                scale = f",scale={length},bias={length}" if op == "layer_norm" else ""
                return f"{op}:x={count}x{length}{scale},dtype={dtype}"

    return draw


def reductions(op: str = "reduce", dtype: str = "f32", most: float = 3e7) -> Draw:
    def draw(r: random.Random) -> str:
        while True:
            count, length = log_size(r, 1, 30000), log_size(r, 8, 1000000)
            if not 4000 <= count * length <= most:
                continue
            by_columns = r.random() < 0.5
            shape, axis = (f"{length}x{count}", 0) if by_columns else (f"{count}x{length}", 1)
            if op == "reduce":
                return f"reduce:x={shape},op={r.choice(('sum', 'mean', 'max', 'l2'))},axes={axis},dtype={dtype}"
            return f"{op}:x={shape},axis={axis},dtype={dtype}"

    return draw


def largest(most: float = 4e5) -> Draw:
    def draw(r: random.Random) -> str:
        while True:
            lines, length = log_size(r, 1, 64), log_size(r, 16, 40000)
            if lines * length <= most:
                return f"topk:x={lines}x{length},k={min(length, log_size(r, 1, 200))}"

    return draw


def pools(dtype: str = "f32", batches: tuple[int, ...] = (1, 16), most: float = 2e7) -> Draw:
    def draw(r: random.Random) -> str:
        while True:
            k, s = r.choice(((2, 2), (3, 1), (3, 2), (3, 2), (5, 1), (7, 1), (9, 1), (3, 3)))
            batch, c, side = r.choice(batches), log_size(r, 8, 700), log_size(r, 8, 120)
            if side >= k and batch * c * side * side <= most:
                kind, pad = r.choice(("max", "avg")), r.choice((0, k // 2))
                return f"pool2d:x={batch}x{c}x{side}x{side},kind={kind},k={k},s={s},p={pad},dtype={dtype}"

    return draw


def attentions(dtype: str = "f32", most: float = 1e9) -> Draw:
    def draw(r: random.Random) -> str:
        while True:
            b, heads, q, d = (
                r.choice((1, 2, 16, 64)),
                r.choice((1, 2, 3, 6, 12)),
                log_size(r, 4, 500),
                r.choice((8, 16, 32, 32, 64)),
            )
            k = r.choice((q, q, log_size(r, 8, 500)))
            if b * heads * q * k * d <= most:
                mask = f",mask={q}x{k}" if r.random() < 0.5 else ""
                return (
                    f"attention:q={b}x{heads}x{q}x{d},k={b}x{heads}x{k}x{d},v={b}x{heads}x{k}x{d}{mask},dtype={dtype}"
                )

    return draw


def prologues(dtype: str = "f32", most: float = FLOPS, batches: tuple[int, ...] = (1, 4, 16)) -> Draw:
    def draw(r: random.Random) -> str:
        while True:
            batch, c, k, side = r.choice(batches), log_size(r, 24, 1200), log_size(r, 16, 300), log_size(r, 5, 60)
            if batch * c * k * side * side <= most:
                if r.random() < 0.5:
                    return (
                        f"prologue_conv2d:x={batch}x{c}x{side}x{side},scale={batch}x{c}x1x1,w={k}x{c}x1x1,dtype={dtype}"
                    )
                more = f"scale={c},shift={c},w={k}x{c}x1x1,before=relu"
                return f"prologue_conv2d:x={batch}x{c}x{side}x{side},{more},dtype={dtype}"

    return draw


def separables(dtype: str = "f32", most: float = 5e8, batches: tuple[int, ...] = (1, 1, 4)) -> Draw:
    def draw(r: random.Random) -> str:
        while True:
            batch, c, k, side, taps = (
                r.choice(batches),
                log_size(r, 8, 400),
                log_size(r, 8, 400),
                log_size(r, 5, 60),
                r.choice((3, 3, 5)),
            )
            if batch * c * (k + taps * taps) * side * side <= most:
                text = f"separable_conv2d:x={batch}x{c}x{side}x{side},wd={c}x1x{taps}x{taps},bd={c},w={k}x{c}x1x1,b={k}"
                return f"{text},p={taps // 2},between=relu,dtype={dtype}"

    return draw


def inverted_residuals(dtype: str = "f32", most: float = 3e8, batches: tuple[int, ...] = (1, 1, 4)) -> Draw:
    def draw(r: random.Random) -> str:
        while True:
            batch, c, side, taps = r.choice(batches), log_size(r, 8, 160), log_size(r, 5, 60), r.choice((3, 3, 5))
            e = c * r.choice((3, 4, 6))
            if batch * e * (2 * c + taps * taps) * side * side <= most:
                text = (
                    f"inverted_residual:x={batch}x{c}x{side}x{side},we={e}x{c}x1x1,be={e},wd={e}x1x{taps}x{taps},bd={e}"
                )
                return f"{text},w={c}x{e}x1x1,b={c},p={taps // 2},expand=relu6,between=relu6,dtype={dtype}"

    return draw


def squeezes(dtype: str = "f32", batches: tuple[int, ...] = (1, 1, 4, 16)) -> Draw:
    def draw(r: random.Random) -> str:
        batch, c, side = r.choice(batches), log_size(r, 16, 1200), log_size(r, 5, 60)
        m = max(4, c // r.choice((4, 4, 16, 24)))
        if batch * c * side * side > 1e7:
            batch, side = 1, min(side, 28)
        text = f"squeeze_excite:x={batch}x{c}x{side}x{side},w1={m}x{c}x1x1,w2={c}x{m}x1x1,b1={m},b2={c}"
        return f"{text},act=relu,gate=sigmoid,dtype={dtype}"

    return draw


def reduced_products(dtype: str = "f32", also: bool = False, most: float = FLOPS) -> Draw:
    def draw(r: random.Random) -> str:
        while True:
            m, k, n = log_size(r, 8, 3000), log_size(r, 16, 1500), log_size(r, 16, 4000)
            if m * k * n <= most:
                how = f"axis={r.choice('nnm')},op={r.choice(('sum', 'max', 'l2'))}{',also=mean' if also else ''}"
                return f"gemm_reduce:a={m}x{k},b={k}x{n},{how},dtype={dtype}"

    return draw


def reduced_convolutions(dtype: str = "f32", most: float = FLOPS, batches: tuple[int, ...] = (1, 4, 16)) -> Draw:
    def draw(r: random.Random) -> str:
        while True:
            batch, c, k, side, taps = (
                r.choice(batches),
                log_size(r, 16, 512),
                log_size(r, 16, 1200),
                log_size(r, 5, 60),
                r.choice((1, 1, 3)),
            )
            if batch * c * k * taps * taps * side * side <= most:
                text = f"conv_reduce:x={batch}x{c}x{side}x{side},w={k}x{c}x{taps}x{taps},op={r.choice(('mean', 'max'))}"
                return f"{text}{f',p={taps // 2}' if taps > 1 else ''},dtype={dtype}"

    return draw


def permutations(dtype: str = "f32", most: float = 2e7) -> Draw:
    def draw(r: random.Random) -> str:
        while True:
            shape = [log_size(r, 2, 300, r.choice((1, 4))) for _ in range(r.choice((2, 3, 4)))]
            if not 20000 <= math.prod(shape) <= most:
                continue
            order = list(range(len(shape)))
            r.shuffle(order)
            if order != sorted(order):
                return f"transpose:x={'x'.join(map(str, shape))},perm={'x'.join(map(str, order))},dtype={dtype}"

    return draw


def stitched(dtype: str = "f32", most: float = 2e7) -> Draw:
    """Parts of tensors: slices, and concats along an inner dimension."""

    def draw(r: random.Random) -> str:
        while True:
            n, c, side = r.choice((1, 1, 4, 16)), log_size(r, 8, 400), log_size(r, 6, 112)
            if not 20000 <= n * c * side * side <= most:
                continue
            kind = r.random()
            if kind < 0.35:
                return (
                    f"concat:x0={n}x{c}x{side}x{side},x1={n}x{log_size(r, 8, 400)}x{side}x{side},axis=1,dtype={dtype}"
                )
            if kind < 0.7:
                begin = r.randrange(1, side // 2 + 1)
                return f"slice:x={n}x{side}x{side}x{c},starts={begin},ends={side},axes=1,dtype={dtype}"
            return f"slice:x={n}x{c}x{side}x{side},starts=0,ends={max(1, c // 2)},axes=1,dtype={dtype}"

    return draw


def inserted(most: float = 1e7) -> Draw:
    """Zeros between the elements of a tensor."""

    def draw(r: random.Random) -> str:
        while True:
            c, side, stride = log_size(r, 1, 500), log_size(r, 4, 100), r.choice((2, 2, 3, 4))
            out = (side - 1) * stride + r.choice((1, 2, 3))
            if c * out * out <= most:
                return (
                    f"scatter_strided:x={c}x{side}x{side},shape={c}x{out}x{out},offset=0x0x0,stride=1x{stride}x{stride}"
                )

    return draw


def integer_convolutions(most: float = 1e8) -> Draw:
    def draw(r: random.Random) -> str:
        while True:
            c, k, kernel, side = log_size(r, 8, 256), log_size(r, 8, 256), r.choice((1, 3, 3)), log_size(r, 6, 60)
            if c * k * kernel**2 * side**2 <= most:
                pad = f",p={kernel // 2}" if kernel > 1 else ""
                return f"conv_integer:x=1x{c}x{side}x{side}:u8,w={k}x{c}x{kernel}x{kernel}:i8,x_zero=scalar:u8{pad}"

    return draw


def first_of(*draws: Draw) -> Draw:
    """One of several draws, each as often as the others."""
    return lambda r: r.choice(draws)(r)


_CPU = (1,)
_SMALL = 6e7
DRAWS: Mapping[str, Draw] = {
    "convolutions": convolutions(),
    "convolutions of few channels": convolutions(channels=(3, 64), kernels=(3, 3, 5), strides=(1,)),
    "convolutions of large kernels": convolutions(kernels=(5, 7, 11), strides=(1, 2, 4)),
    "convolutions 3x3 and 5x5": convolutions(kernels=(3, 3, 5), strides=(1,)),
    "convolutions in f16": convolutions(dtype="f16"),
    "convolutions in f16, whole steps": convolutions(dtype="f16", step=16, kernels=(1, 1, 3, 3, 5, 7)),
    "convolutions of small planes in f16": convolutions(
        dtype="f16", planes=(1, 24), channels=(8, 600), kernels=(1, 1, 3)
    ),
    "convolutions of few channels in f16": convolutions(dtype="f16", channels=(3, 40)),
    "stems": stems("f32"),
    "stems in f16": stems(),
    "patches": patches(),
    "groups": grouped(),
    "groups in f16": grouped("f16"),
    "depthwise": depthwise(),
    "depthwise in f16": depthwise("f16"),
    "depthwise with strides": depthwise(strides=(2, 2, 3)),
    "fully connected": fully_connected(),
    "fully connected in f16": fully_connected("f16"),
    "data gradients": data_gradients(),
    "weight gradients": weight_gradients(),
    "weight gradients 3x3 and 5x5": weight_gradients(kernels=(3, 3, 5), strides=(1,)),
    "depthwise weight gradients": weight_gradients(kernels=(3, 3, 5, 7), deep=True, most=3e8),
    "depthwise weight gradients in f16": weight_gradients(kernels=(3, 3, 5, 7), deep=True, most=3e8, dtype="f16"),
    "transposed": transposed(),
    "transposed in f16": transposed("f16"),
    "products": products(),
    "products in f16": products(dtype="f16"),
    "products of few rows": products(rows=(1, 40), sides=(64, 8000)),
    "products of few rows in f16": products(rows=(1, 40), sides=(64, 8000), dtype="f16"),
    "rows": rows_of(),
    "rows in f16": rows_of(dtype="f16"),
    "reductions": reductions(),
    "pools": first_of(pools(), pools("f16")),
    "attentions": attentions(),
    "attentions in f16": attentions("f16"),
    "prologues": prologues(),
    "separables": separables(),
    "inverted residuals": inverted_residuals(),
    "squeezes": squeezes(),
    "reduced products": first_of(reduced_products(), reduced_convolutions()),
    "reduced products twice": reduced_products(also=True),
    "reduced products in f16": first_of(reduced_products("f16"), reduced_convolutions("f16")),
    "permutations": first_of(permutations(), permutations("f16")),
    "copies": first_of(permutations(), permutations("f16"), stitched(), stitched("f16")),
    "zeros between": inserted(),
    # What a CPU driver computes in milliseconds.
    "small convolutions": convolutions(batches=_CPU, most=_SMALL, planes=(5, 64), channels=(8, 256)),
    "small convolutions 3x3": convolutions(
        batches=_CPU, most=1.5e8, planes=(5, 64), kernels=(3, 3, 3, 5), strides=(1,)
    ),
    "small convolutions of large kernels": convolutions(
        batches=_CPU, most=_SMALL, kernels=(5, 7, 11), strides=(1, 2, 4)
    ),
    "small groups": grouped(batches=_CPU, most=_SMALL),
    "small depthwise": depthwise(batches=_CPU, most=2e7),
    "small fully connected": first_of(fully_connected(), fully_connected("f16")),
    "small data gradients": first_of(
        data_gradients(batches=_CPU, most=_SMALL), data_gradients(batches=_CPU, most=_SMALL, dilated=False)
    ),
    "small weight gradients": weight_gradients(batches=_CPU, most=_SMALL),
    "small weight gradients 3x3": weight_gradients(
        batches=_CPU, most=2e8, kernels=(3,), strides=(1,), channels=(24, 256)
    ),
    "small depthwise weight gradients": weight_gradients(kernels=(3, 3, 5, 7), deep=True, batches=(1, 4), most=3e7),
    "small transposed": transposed(batches=_CPU, most=_SMALL),
    "small products": products(rows=(1, 300), most=_SMALL, sides=(16, 1500)),
    "few bits": few_bits(),
    "small rows": rows_of(most=1e6),
    "small reductions": reductions(most=1e6),
    "small arg_reductions": reductions("arg_reduce", most=1e6),
    "largest": largest(),
    "small pools": pools(batches=_CPU, most=4e5),
    "small prologues": prologues(batches=_CPU, most=_SMALL),
    "small separables": separables(batches=_CPU, most=2e7),
    "small inverted residuals": inverted_residuals(batches=_CPU, most=2e7),
    "small squeezes": squeezes(batches=_CPU),
    "small reduced products": first_of(reduced_products(most=_SMALL), reduced_convolutions(most=_SMALL, batches=_CPU)),
    "small copies": first_of(permutations(most=1e6), stitched(most=1e6)),
    "small zeros between": inserted(1e6),
    "small integer convolutions": integer_convolutions(4e7),
}
