"""Ops as functions, numpy arrays in and out, or arrays that stay on a device::

    from vkconv import functional

    y = functional.conv2d(x, w, b, stride=2, padding=1, activation="relu")
    there = functional.relu(vkconv.array(x), out="device")

Convolutions, products, gradients, reductions and normalizations have functions with arguments of their own; every other
op of ``vkconv ops`` has one made of its declaration: operands by their place, then attributes by their names.
arg_reduce is `argmax` and `argmin`; constant_of_shape, eye_like, range, shape and size, which compute nothing from the
elements of an array, have no function. Each function takes a ``device`` as `vkconv.load` does and, but for
`conv2d_bias_gradient`, an optional ``route`` to force, and raises a VkconvError for what it cannot do, before anything
runs. Floats are float32, float16 or ml_dtypes' bfloat16, all of a call in one of them; sums are f32, and results are
rounded to the type of the operands. Operands may be on the device already (`vkconv.array`), all on one, where the call
then runs; with ``out="device"`` results stay there. The sessions of the latest distinct calls are kept, as many as
`set_cache_bytes` allows, so that a second call with the same shapes plans, allocates and compiles nothing. Weights of
numpy go to the device and are packed at every call; those that are on the device are packed when they come a second
time, once for all shapes of the other operands. A model wants `vkconv.load`.
"""

from collections.abc import Callable
from typing import Any

from vkconv.core import did_you_mean
from vkconv.functional.attend import attention
from vkconv.functional.cache import clear_cache, set_cache_bytes
from vkconv.functional.forward import conv1d, conv2d, conv_transpose2d
from vkconv.functional.fused import conv_reduce, gemm_reduce
from vkconv.functional.generated import ELSEWHERE, HOST_ONLY, function_of
from vkconv.functional.gradients import (
    conv1d_backward_data,
    conv2d_backward_data,
    conv2d_bias_gradient,
    conv3d_backward_data,
    scatter_strided,
)
from vkconv.functional.normalize import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    log_softmax,
    rms_norm,
    softmax,
)
from vkconv.functional.products import matmul
from vkconv.functional.reductions import argmax, argmin, reduce
from vkconv.functional.weight_gradients import (
    conv1d_backward_weight,
    conv2d_backward_weight,
    conv3d_backward_weight,
    conv_transpose1d_backward_weight,
    conv_transpose2d_backward_weight,
    conv_transpose3d_backward_weight,
)
from vkconv.ops import OPS

__all__ = [
    "argmax",
    "argmin",
    "attention",
    "batch_norm",
    "clear_cache",
    "conv1d",
    "conv1d_backward_data",
    "conv1d_backward_weight",
    "conv2d",
    "conv2d_backward_data",
    "conv2d_backward_weight",
    "conv2d_bias_gradient",
    "conv3d_backward_data",
    "conv3d_backward_weight",
    "conv_reduce",
    "conv_transpose1d_backward_weight",
    "conv_transpose2d",
    "conv_transpose2d_backward_weight",
    "conv_transpose3d_backward_weight",
    "gemm_reduce",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "log_softmax",
    "matmul",
    "reduce",
    "rms_norm",
    "scatter_strided",
    "set_cache_bytes",
    "softmax",
]

_GENERATED = {name: function_of(op) for name, op in OPS.items() if name not in {*__all__, *HOST_ONLY, *ELSEWHERE}}
globals().update(_GENERATED)
__all__ += sorted(_GENERATED)


def __getattr__(name: str) -> Callable[..., Any]:
    """Tells type checkers that the generated functions are there."""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{did_you_mean(name, __all__)}")
