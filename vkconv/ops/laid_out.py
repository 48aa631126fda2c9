"""The ops whose calls may be in any layout, with what of each is data and what weights."""

import dataclasses
from collections.abc import Mapping, Sequence

from vkconv.ops.conv.conv2d.op import CONV2D
from vkconv.ops.conv.dgrad.op import CONV2D_BACKWARD_DATA
from vkconv.ops.conv.dgrad.volume import CONV3D_BACKWARD_DATA
from vkconv.ops.conv.transpose.op import CONV_TRANSPOSE2D
from vkconv.ops.conv.wgrad.op import CONV2D_BACKWARD_WEIGHT, CONV3D_BACKWARD_WEIGHT
from vkconv.ops.core.base import Op
from vkconv.ops.fused.conv_reduce import CONV_REDUCE
from vkconv.ops.kernels.laid_out_route import LaidOutRoute
from vkconv.ops.kernels.layout import Order
from vkconv.ops.kernels.op_layouts import Layouts
from vkconv.ops.spatial.pool2d import POOL2D

_DATA = {2: Order("NCHW", "C", ("NHWC", "NHWGC", "GNHWC")), 3: Order("NCDHW", "C", ("NDHWC", "NDHWGC", "GNDHWC"))}
_WEIGHTS = {2: Order("KCYX", "K", ("KYXC", "GKYXC")), 3: Order("KCZYX", "K", ("KZYXC", "GKZYXC"))}


def _backward_data(op: Op, rank: int) -> Layouts:
    data, weights = _DATA[rank], _WEIGHTS[rank]
    return Layouts(op, ("dy", "dx"), data, ("w",), weights, {"x_shape": "dx"}, ("w",))


def _backward_weight(op: Op, rank: int) -> Layouts:
    data, weights = _DATA[rank], _WEIGHTS[rank]
    return Layouts(op, ("x", "dy"), data, ("add", "term*", "dw"), weights, {"w_shape": "dw"})


def _laid_out(layouts: Layouts, cases: Sequence[str]) -> Op:
    """The op with calls in any layout; ``cases`` are such calls, without the op's name."""
    op = layouts.op
    published = {
        name: lambda call, device, rule=rule: rule(layouts.first(call), device) for name, rule in op.published.items()
    }
    return dataclasses.replace(
        op,
        resolve=layouts.resolve,
        reference=layouts.reference,
        attrs=(*op.attrs, *layouts.attrs),
        routes=tuple(LaidOutRoute.of(route, layouts) for route in op.routes),
        terms=lambda call: op.terms(layouts.first(call)),
        flops=lambda call: op.flops(layouts.first(call)),
        magnitude=op.magnitude and layouts.magnitude(op.magnitude, op.outputs[0]),
        magnitudes={name: layouts.magnitude(of, name) for name, of in op.magnitudes.items()},
        sums=op.sums and layouts.sums(op.sums),
        published=published,
        cases=(*op.cases, *(f"{op.name}:{case}" for case in cases)),
    )


_TABLE: tuple[tuple[Layouts, tuple[str, ...]], ...] = (
    (
        Layouts(CONV2D, ("x", "residual", "y"), _DATA[2], ("w",), _WEIGHTS[2], prepacked=("w",)),
        (
            "x=2x9x7x6,w=10x3x3x3,b=10,residual=2x9x7x10,p=1,g=2,act=relu,layout=NHWC",
            "x=3x5x7x2x3,w=2x5x3x1x3,slope=10,p=1x0,act=prelu,layout=NHWGC,w_layout=GKYXC",
            "x=1x1x7x9,w=11x7x1x1,w_layout=KYXC",
        ),
    ),
    (
        Layouts(
            CONV_TRANSPOSE2D,
            ("x", "y"),
            _DATA[2],
            ("w",),
            Order("CKYX", "C", ("CYXK", "GCYXK")),
            prepacked=("w",),
        ),
        ("x=2x4x5x6,w=6x3x2x5,b=10,s=2,p=1,g=2,layout=NHWC,w_layout=CYXK",),
    ),
    (
        _backward_data(CONV2D_BACKWARD_DATA, 2),
        (
            "dy=2x5x7x6,w=6x3x3x3,x_shape=9x13,g=2,s=2,p=1,layout=NHWC",
            "dy=2x5x6x3x2,w=3x2x3x2x5,b=15,x_shape=2x5x6x3x5,p=1x0x1x1,act=relu,layout=NHWGC,w_layout=GKYXC",
        ),
    ),
    (
        _backward_data(CONV3D_BACKWARD_DATA, 3),
        ("dy=2x3x4x5x2x3,w=2x3x2x1x3x4,x_shape=4x4x5,p=0x0x1,layout=NDHWGC,w_layout=GKZYXC",),
    ),
    (
        _backward_weight(CONV2D_BACKWARD_WEIGHT, 2),
        (
            "x=2x9x7x5,add=6x5x3x3,dy=2x9x7x6,w_shape=6x5x3x3,p=1,beta=0.5,layout=NHWC",
            "x=3x7x6x2x5,term0=2x3x1x1x5,dy=3x7x6x2x3,w_shape=2x3x1x1x5,factors=2,layout=NHWGC,w_layout=GKYXC",
            "x=2x9x8x16:f16,dy=2x9x8x32:f16,w_shape=32x3x3x16,p=1,dw_dtype=f32,layout=NHWC,w_layout=KYXC",
        ),
    ),
    (
        _backward_weight(CONV3D_BACKWARD_WEIGHT, 3),
        ("x=2x5x6x7x2x3,dy=2x3x5x6x2x2,w_shape=2x2x3x2x2x3,layout=NDHWGC,w_layout=GKZYXC",),
    ),
    (
        Layouts(
            CONV_REDUCE,
            ("x", "residual", "residual2", "product"),
            _DATA[2],
            ("w",),
            _WEIGHTS[2],
            prepacked=("w",),
            if_kept=("y", "also"),
        ),
        (
            "x=2x9x7x6,w=10x3x3x3,b=10,residual=2x9x7x10,g=2,p=1,axes=3,op=mean,keep=1,also=max,product=1,layout=NHWC",
            "x=3x5x7x2x3,w=2x5x3x1x3,op=max,layout=NHWGC,w_layout=GKYXC",
            "x=2x9x7x6,w=10x6x3x3,residual=1x1x1x10,residual2=2x9x7x1,p=1,act=relu,op=mean,layout=NHWC",
        ),
    ),
    (Layouts(POOL2D, ("x", "y"), _DATA[2]), ("x=2x13x17x3,kind=max,k=3,s=2,p=1,layout=NHWC",)),
)
"""What of each op is data and what weights, and cases in other layouts."""

LAYOUTS: Mapping[str, Layouts] = {layouts.op.name: layouts for layouts, _ in _TABLE}
LAID_OUT: tuple[Op, ...] = tuple(_laid_out(*row) for row in _TABLE)
"""Ops whose calls may be in any layout."""
