"""Declarations of every kernel, a module for each folder of shaders/: vkconv/kernel.py says what they are made of."""

from vkconv.shaders import (
    conv,
    conv2d,
    fused,
    kernels,
    matmul,
    movement,
    norm,
    pointwise,
    quant,
    recurrence,
    reduce,
    spatial,
    transpose,
    wgrad,
)

__all__ = (
    "conv",
    "conv2d",
    "fused",
    "kernels",
    "matmul",
    "movement",
    "norm",
    "pointwise",
    "quant",
    "recurrence",
    "reduce",
    "spatial",
    "transpose",
    "wgrad",
)
