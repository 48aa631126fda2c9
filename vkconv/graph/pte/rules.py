"""Import rules for ExecuTorch's own operators: what its passes make of ATen's, and what memory formats need."""

import sys

import numpy as np

from vkconv.core import DType
from vkconv.graph.aten.elementwise import clipped
from vkconv.graph.aten.movement import MOST_MADE
from vkconv.graph.aten.view import CallView, Rule
from vkconv.graph.aten.windows import convolved
from vkconv.graph.ir import AttrValue

_NO_BOUND = sys.float_info.max


def _same(n: CallView) -> None:
    """The tensor is put in a place or order of memory that vkconv chooses for itself."""
    n.finish(n.x(0))


def _cast(n: CallView) -> None:
    n.finish(n.cast(n.x(0), n.dtype(0), n.made.dtype))


def _view(n: CallView) -> None:
    shape = n.dims(n.made.shape)
    n.finish(n.emit("reshape", n.x(0), shape=shape, allowzero=0 in shape))


def _clamped_convolution(n: CallView) -> None:
    """Arguments of a convolution, and the bounds of what it makes. Where there is none ExecuTorch writes the largest
    float64: backends/transforms/fuse_conv_with_clamp.py."""
    low, high = (None if bound is None or abs(bound) == _NO_BOUND else bound for bound in (n.arg(9), n.arg(10)))
    n.finish(clipped(n, convolved(n), low, high))


def _grid_priors(n: CallView) -> None:
    """Arguments: x, of which only height and width count, stride, offset. Makes the (column, row) of each pixel, moved
    by the offset and times the stride, pixel after pixel."""
    h, w = (n.int_of(d) for d in n.meta(0).shape[-2:])
    if h * w > MOST_MADE:
        n.refuse(f"it makes {h * w} places; vkconv makes {MOST_MADE}")
    rows, columns = np.indices((h, w)).reshape(2, -1)
    places = (np.stack([columns, rows], -1) + float(n.arg(2))) * n.int_of(n.arg(1))
    n.finish(n.number(places, n.made.dtype))


def _rms_norm(n: CallView) -> None:
    """Arguments: x, scale of the last dimension, epsilon."""
    n.finish(n.emit("rms_norm", n.x(0), n.x(1), axis=n.rank(0) - 1, eps=float(n.arg(2))))


def _attention(n: CallView) -> None:
    """Arguments: q, k, v, a mask that is added, scale. A row that sees no key is NaN, as of the softmax that it is."""
    scale = n.arg(4)
    attrs: dict[str, AttrValue] = {
        "scale": float(n.int_of(n.meta(0).shape[-1])) ** -0.5 if scale is None else float(scale)
    }
    if n.has(3) and n.dtype(3) is DType.BOOL:
        n.refuse("its mask is of bools")
    mask = [n.cast(n.x(3), n.dtype(3), n.dtype(0))] if n.has(3) else []
    n.finish(n.emit("attention", *(n.x(i) for i in range(3)), *mask, zero_rows=False, **attrs))


RULES: dict[str, Rule] = {
    "dim_order_ops._clone_dim_order.default": _cast,
    "dim_order_ops._to_dim_order_copy.default": _cast,
    "et_vk.conv_with_clamp.default": _clamped_convolution,
    "et_vk.grid_priors.default": _grid_priors,
    "et_vk.prepack.default": _same,
    "et_vk.rms_norm.default": _rms_norm,
    "et_vk.sdpa.default": _attention,
    "executorch_prim.et_view.default": _view,
}
