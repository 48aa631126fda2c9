"""Convolutions and their gradients, drawn at random for fits of policies (`draws`)."""

import math
import random
from collections.abc import Callable

Draw = Callable[[random.Random], str]


def log_size(r: random.Random, least: int, most: int, step: int = 1) -> int:
    """A size between two, by its logarithm, of whole steps."""
    return max(step, round(math.exp(r.uniform(math.log(least), math.log(most))) / step) * step)


FLOPS = 2e9


def _conv(
    r: random.Random, c: int, k: int, plane: int, kernel: int, stride: int, batch: int, dtype: str, groups: int = 1
) -> str:
    pad = kernel // 2
    text = f"conv2d:x={batch}x{c}x{plane}x{plane},w={k}x{c // groups}x{kernel}x{kernel}"
    text += f",s={stride}" if stride > 1 else ""
    text += f",p={pad}" if pad else ""
    text += f",g={groups}" if groups > 1 else ""
    return f"{text},dtype={dtype}"


def _fits(plane: int, c: int, k: int, kernel: int, stride: int, batch: int, groups: int, most: float) -> bool:
    outputs = batch * (plane // stride) ** 2
    return outputs * c * k * kernel**2 / groups <= most and outputs * (k + c * stride**2) <= most / 30


def convolutions(
    kernels: tuple[int, ...] = (1, 3, 3, 5, 7),
    strides: tuple[int, ...] = (1, 1, 2),
    channels: tuple[int, int] = (8, 512),
    planes: tuple[int, int] = (5, 128),
    batches: tuple[int, ...] = (1, 4, 16),
    dtype: str = "f32",
    most: float = FLOPS,
    step: int = 1,
) -> Draw:
    def draw(r: random.Random) -> str:
        while True:
            c, k = log_size(r, *channels, step), log_size(r, *channels, step)
            kernel, stride, batch = r.choice(kernels), r.choice(strides), r.choice(batches)
            plane = log_size(r, *planes)
            if plane >= kernel and _fits(plane, c, k, kernel, stride, batch, 1, most):
                return _conv(r, c, k, plane, kernel, stride, batch, dtype)

    return draw


def stems(dtype: str = "f16", batches: tuple[int, ...] = (1, 4, 16)) -> Draw:
    def draw(r: random.Random) -> str:
        kernel, stride, c = r.choice((3, 3, 5, 7)), 2, r.choice((1, 2, 3, 3, 3, 4, 6, 8))
        return _conv(r, c, log_size(r, 12, 100, 4), 2 * log_size(r, 20, 150), kernel, stride, r.choice(batches), dtype)

    return draw


def patches(dtype: str = "f32") -> Draw:
    """Convolutions whose windows share no pixel."""

    def draw(r: random.Random) -> str:
        size = r.choice((2, 2, 4, 4, 7, 8, 14, 16))
        c = r.choice((1, 3, 3, log_size(r, 8, 256)))
        k, plane = log_size(r, 16, 700), log_size(r, 6, 60)
        if plane * plane * size * size * c * k > 1.5e8:
            plane = max(3, int(math.sqrt(1.5e8 / (size * size * c * k))))
        return f"conv2d:x=1x{c}x{plane * size}x{plane * size},w={k}x{c}x{size}x{size},s={size},dtype={dtype}"

    return draw


def grouped(dtype: str = "f32", batches: tuple[int, ...] = (1, 4, 16), most: float = FLOPS) -> Draw:
    def draw(r: random.Random) -> str:
        while True:
            of_group = r.choice((2, 4, 4, 8, 8, 12, 16, 16, 24, 32))
            groups = log_size(r, 4, 64)
            kernel, stride, batch, plane = (
                r.choice((3, 3, 3, 5)),
                r.choice((1, 1, 2)),
                r.choice(batches),
                log_size(r, 7, 90),
            )
            c = groups * of_group
            if _fits(plane, c, c, kernel, stride, batch, groups, most):
                return _conv(r, c, c, plane, kernel, stride, batch, dtype, groups)

    return draw


def depthwise(
    dtype: str = "f32", batches: tuple[int, ...] = (1, 4, 16), most: float = 4e8, strides: tuple[int, ...] = (1, 1, 2)
) -> Draw:
    def draw(r: random.Random) -> str:
        while True:
            c, kernel, stride = log_size(r, 16, 1200, 4), r.choice((3, 3, 5, 7)), r.choice(strides)
            batch, plane, times = r.choice(batches), log_size(r, 6, 130), r.choice((1, 1, 1, 1, 2))
            if plane >= kernel and batch * c * times * (plane // stride) ** 2 * kernel**2 <= most:
                return _conv(r, c, c * times, plane, kernel, stride, batch, dtype, c)

    return draw


def fully_connected(dtype: str = "f32", batches: tuple[int, ...] = (1, 1, 2, 4, 8, 16, 24, 32, 48, 64)) -> Draw:
    def draw(r: random.Random) -> str:
        batch, side = r.choice(batches), r.choice((1, 1, 1, 3, 6))
        c, k = log_size(r, 6, 2500 // side), log_size(r, 6, 2500)
        return f"conv2d:x={batch}x{c}x{side}x{side},w={k}x{c}x{side}x{side},dtype={dtype}"

    return draw


def data_gradients(
    dilated: bool = True, dtype: str = "f32", most: float = FLOPS, batches: tuple[int, ...] = (1, 4, 16)
) -> Draw:
    def draw(r: random.Random) -> str:
        while True:
            stride, kernel, batch = r.choice((2, 2, 3, 4)), r.choice((2, 3, 3, 5)), r.choice(batches)
            dilation = stride if dilated else 1
            c, k, side = log_size(r, 8, 300), log_size(r, 8, 300), log_size(r, 5, 40)
            extent = dilation * (kernel - 1) + 1
            pad = extent // 2
            x = (side - 1) * stride + extent - 2 * pad
            if x > 0 and batch * side * side * c * k * kernel**2 <= most:
                return (
                    f"conv2d_backward_data:dy={batch}x{k}x{side}x{side},w={k}x{c}x{kernel}x{kernel},x_shape={x}x{x}"
                    f",s={stride},p={pad},d={dilation},dtype={dtype}"
                )

    return draw


def weight_gradients(
    kernels: tuple[int, ...] = (1, 3, 3, 5),
    strides: tuple[int, ...] = (1, 1, 2),
    deep: bool = False,
    dtype: str = "f32",
    most: float = FLOPS,
    batches: tuple[int, ...] = (1, 4, 16),
    channels: tuple[int, int] = (8, 400),
) -> Draw:
    def draw(r: random.Random) -> str:
        while True:
            kernel, stride, batch = r.choice(kernels), r.choice(strides), r.choice(batches)
            c, side = log_size(r, *channels), log_size(r, 5, 100)
            k = c if deep else log_size(r, *channels)
            if kernel > side or batch * side * side * k * (1 if deep else c) * kernel**2 > most:
                continue
            if batch * c * (side * stride) ** 2 > 3e7:
                continue
            pad, x = kernel // 2, side * stride
            text = f"conv2d_backward_weight:x={batch}x{c}x{x}x{x},dy={batch}x{k}x{side}x{side}"
            text += f",w_shape={k}x{1 if deep else c}x{kernel}x{kernel}"
            text += f",s={stride}" if stride > 1 else ""
            text += f",p={pad}" if pad else ""
            text += f",g={c}" if deep else ""
            return f"{text},dtype={dtype}"

    return draw


def transposed(dtype: str = "f32", groups: bool = True, most: float = FLOPS, batches: tuple[int, ...] = (1, 4)) -> Draw:
    def draw(r: random.Random) -> str:
        while True:
            stride, kernel, batch = r.choice((2, 2, 3, 4)), r.choice((2, 3, 4, 4, 5)), r.choice(batches)
            g = r.choice((1, 1, 1, 8, 16)) if groups else 1
            c, k, side = log_size(r, 8, 256, g), log_size(r, 8, 256, g), log_size(r, 5, 60)
            if batch * side * side * c * k * kernel**2 / g <= most:
                text = f"conv_transpose2d:x={batch}x{c}x{side}x{side},w={c}x{k // g}x{kernel}x{kernel},s={stride}"
                return f"{text}{f',g={g}' if g > 1 else ''},dtype={dtype}"

    return draw
