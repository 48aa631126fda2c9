"""The route of conv2d with one input channel per group."""

import itertools
import math
from collections.abc import Mapping

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.conv.common import FEW_TAPS, GROUPED, ONE_CHANNEL_PER_GROUP, buffers, push, span
from vkconv.ops.conv.conv2d.direct import SHORT_SPAN
from vkconv.ops.core.base import first, local_sizes, over_workgroups
from vkconv.ops.core.requirements import FLOATS, TILES_KEPT
from vkconv.ops.kernels.epilogue import Epilogue, finishing
from vkconv.ops.kernels.f16_accumulation import F16, F32, Arithmetic, in_f16
from vkconv.ops.kernels.prepack import MOST_SPAN, TILE_OVERHEAD, InvocationTiles
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.requirement import Requirement
from vkconv.route import Params, Route

_BLOCKS = Policy("conv2d.depthwise_blocks", InvocationTiles)

DEPTHWISE = Shader(shaders.conv2d.CONV2D_DEPTHWISE)
# As `MOST_SPAN`, of rows.
MOST_REACH = 20


def _params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    t, overhead = _BLOCKS.of(device), TILE_OVERHEAD.of(device)
    oh, ow = call.shape("y")[2:]
    rows = tuple(ry for ry in t.rows.values(oh, device) if span(call, 0, ry) <= MOST_REACH)
    columns = tuple(px for px in t.columns.values(ow, device) if span(call, 1, px) <= MOST_SPAN)

    def cost(block: tuple[int, int]) -> int:
        """Of a plane, in workgroups: small planes leave lanes without a block where blocks are large."""
        ry, px = block
        return ceil_div(ceil_div(oh, ry) * ceil_div(ow, px), t.local[0]) * (ry * px + overhead)

    by_rule = itertools.product(
        [ry for ry in rows if ry in t.rows.rule], [px for px in columns if px in t.columns.rule]
    )
    ry, px = min(by_rule, key=cost)
    return {
        "rows": first(ry, rows),
        "columns": first(px, columns),
        "local": local_sizes(device, *t.local),
    }


def block_sizes(call: Call, params: Params) -> dict[str, int]:
    """The specialization constants of blocks of outputs and their windows."""
    names = ("KH", "KW", "SH", "SW", "DH", "DW")
    window = zip(names, (*call.shape("w")[2:], *call["stride"], *call["dilation"]), strict=True)
    return {"RY": params["rows"], "PX": params["columns"], **dict(window)}


def _build(call: Call, device: Device, params: Params, arithmetic: Arithmetic = F32) -> Program:
    n, c_out, oh, ow = call.shape("y")
    ry, px, local = params["rows"], params["columns"], params["local"]
    units = ceil_div(oh, ry) * ceil_div(ow, px)
    e = Epilogue.of(call, device)
    step = Dispatch(
        e.variant(arithmetic.variant(DEPTHWISE)),
        buffers(e, "w"),
        *over_workgroups(n * c_out * ceil_div(units, local), local, device),
        push(call, e),
        {**e.constants, **block_sizes(call, params)},
    )
    return e.complete(Program((step,)), call.shape("y"), device)


def short_reach(what: str, outputs: int) -> Requirement:
    """At most `MOST_REACH` input rows for so many outputs of a column."""
    return Requirement.of(
        f"{what} of a column from at most {MOST_REACH} input rows",
        lambda call: span(call, 0, outputs),
        lambda rows: rows <= MOST_REACH,
        "{} rows".format,
    )


SHORT_REACH = short_reach("3 outputs", 3)

DEPTHWISE_ROUTE = Route(
    "depthwise",
    _build,
    finishing(DEPTHWISE),
    why="with one input channel per group there is nothing to sum over channels: a block of outputs of one "
    "channel reuses the rows it loads across taps",
    must=(FLOATS, ONE_CHANNEL_PER_GROUP, SHORT_SPAN, SHORT_REACH, FEW_TAPS),
    prefer=(GROUPED, TILES_KEPT),
    params=_params,
)
DEPTHWISE_F16 = in_f16(
    DEPTHWISE_ROUTE,
    _build,
    finishing(F16.variant(DEPTHWISE)),
    lambda call: math.prod(call.shape("w")[2:]),
    whole=("columns", 2),
)
