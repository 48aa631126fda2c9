"""conv2d by subgroups: weights loaded once for all lanes and handed out by shuffles."""

import dataclasses
import math
from collections.abc import Mapping

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.conv.common import buffers, flattened, push, span
from vkconv.ops.conv.conv2d.direct import packing
from vkconv.ops.conv.conv2d.in_registers import SUITS_SUBGROUP
from vkconv.ops.core.base import defaults, first, local_sizes, over_workgroups
from vkconv.ops.core.requirements import FLOATS, SHUFFLE
from vkconv.ops.kernels.cpu_cost import COSTS, Costs
from vkconv.ops.kernels.epilogue import Epilogue, finishing
from vkconv.ops.kernels.prepack import MOST_SPAN, PACK_TILES, short_span
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.route import Params, Route

SUBGROUP = Shader(shaders.conv2d.CONV2D_SUBGROUP)
# Multiples of four, as weights come. Groups make sizes between powers of two pay: lavapipe, us, four groups of 34->34
# over 28x28 12x8 594, 32x4 736; of 68->68 over 14x14 24x4 494, 28x4 535, 32x4 570, 16x4 640.
_CHANNELS, _COLUMNS = (32, 28, 24, 16, 12, 8, 4), (8, 4, 16, 2, 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Sums of an invocation at most; multiply-adds of an iteration of the loop over rows of taps, which are unrolled;
    and rows of taps of an iteration, 0 for two nested loops: over input channels, and over the rows of each."""

    sums: int
    multiply_adds: int
    rows: int


@dataclasses.dataclass(frozen=True, slots=True)
class Unrolled:
    """Weights of a row of taps of a tile at most, and the limits of calls of ``long_flops`` and more, which earn what a
    larger kernel costs to compile, and of others."""

    taps: int
    long_flops: float
    short: Limits
    long: Limits

    def limits(self, call: Call) -> Limits:
        """Those of a call."""
        flops = 2 * math.prod(call.shape("y")) * math.prod(call.shape("w")[1:])
        return self.long if flops >= self.long_flops else self.short

    @property
    def padded_rows(self) -> int:
        """What the rows of taps of a tile are padded to a multiple of: alike for short and long calls, so that plans
        for images of several sizes share what is packed."""
        return max(1, self.short.rows, self.long.rows)


_UNROLLED = Policy("conv2d.subgroup_unrolled", Unrolled)


def _inputs(call: Call, columns: int) -> set[int]:
    """Inputs of a row that so many neighbouring outputs touch, counted from the first."""
    taps, stride, dilation = call.shape("w")[3], int(call["stride"][1]), int(call["dilation"][1])
    return {p * stride + k * dilation for p in range(columns) for k in range(taps)}


def _input_loads(call: Call, columns: int, costs: Costs) -> tuple[float, bool]:
    """Estimated ns to load the inputs of so many columns, and whether that is by vec4, which takes rows and blocks
    of whole ones."""
    inputs = _inputs(call, columns)
    single = costs.load * len(inputs)
    if call.shape("x")[3] % 4 or columns * int(call["stride"][1]) % 4:
        return single, False
    skip = -int(call["padding"][1]) % 4
    vec4 = costs.load4 * len({(skip + i) // 4 for i in inputs})
    return min((single, False), (vec4, True))


def _y_vec4(call: Call, columns: int) -> bool:
    return call.shape("y")[3] % 4 == 0 and columns % 4 == 0


def _blocks(call: Call, channels: int, columns: int, lanes: int) -> int:
    n, c_out, oh, ow = call.shape("y")
    groups: int = call["groups"]
    return n * groups * ceil_div(c_out // groups, channels) * ceil_div(oh * ceil_div(ow, columns), lanes)


def _row(call: Call, channels: int, columns: int, lanes: int, costs: Costs) -> float:
    """Estimated ns of one row of taps of one input channel."""
    taps = call.shape("w")[3] * channels
    loads = _input_loads(call, columns, costs)[0] + costs.load4 * ceil_div(taps, 4 * lanes)
    return loads + taps * (costs.share + columns * costs.multiply_add)


def _cost(call: Call, channels: int, columns: int, lanes: int, unrolled: Unrolled, costs: Costs) -> float:
    """Estimated ns of the call by a tile size."""
    in_group, kh, _ = call.shape("w")[1:]
    sums, rows = channels * columns, _rows_at_once(call, channels, columns, unrolled)
    store = costs.load4 / 4 if _y_vec4(call, columns) else costs.load
    iteration = costs.iteration + (costs.carry * sums if rows else 0.0)
    each = in_group * kh * (_row(call, channels, columns, lanes, costs) + iteration / max(rows, 1)) + sums * store
    return _blocks(call, channels, columns, lanes) * each


def _rows_at_once(call: Call, channels: int, columns: int, unrolled: Unrolled) -> int:
    """Rows of taps of an iteration; 0: two nested loops, over channels and over rows."""
    limits, (in_group, kh, kw) = unrolled.limits(call), call.shape("w")[1:]
    if limits.rows == 0:
        return 0
    most = min(limits.rows, limits.multiply_adds // (channels * columns * kw), in_group * kh)
    return max(rows for rows in range(1, max(most, 1) + 1) if unrolled.padded_rows % rows == 0)


def _columns(call: Call) -> tuple[int, ...]:
    """Of a tile, those whose windows a lane can hold."""
    return tuple(px for px in _COLUMNS if span(call, 1, px) <= MOST_SPAN)


def _params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    call, lanes, unrolled = flattened(call), device.subgroup_size, _UNROLLED.of(device)
    limits, costs = unrolled.limits(call), COSTS.of(device)
    kw, rows = call.shape("w")[3], call.shape("y")[1] // int(call["groups"])
    # Channels by the weights alone, so that plans for other sizes of images share what is packed.
    few = [co for co in _CHANNELS if co * kw <= unrolled.taps] or _CHANNELS[-1:]
    each = {co: costs.iteration + _row(call, co, _COLUMNS[0], lanes, costs) for co in few}
    channels = min(few, key=lambda co: ceil_div(rows, co) * each[co])
    columns = _columns(call)
    fitting = [px for px in columns if channels * px * kw <= limits.multiply_adds and channels * px <= limits.sums]
    best = min(fitting or columns[-1:], key=lambda px: _cost(call, channels, px, lanes, unrolled, costs))
    return {
        "channels": first(channels, _CHANNELS),
        "columns": first(best, columns),
        "local": local_sizes(device, lanes, 2 * lanes, 4 * lanes),
    }


def estimated_ns(call: Call, device: Device) -> float | None:
    """What the tile of the rule takes of a core for a call in f32, by the costs of CPU drivers; None without such a
    tile."""
    if not _columns(flattened(call)):
        return None
    params, lanes = defaults(_params(call, device)), device.subgroup_size
    tile = params["channels"], params["columns"], lanes, _UNROLLED.of(device), COSTS.of(device)
    return _cost(flattened(call), *tile)


def _build(call: Call, device: Device, params: Params) -> Program:
    call, lanes, unrolled = flattened(call), device.subgroup_size, _UNROLLED.of(device)
    co, px, local = params["channels"], params["columns"], params["local"]
    c_in, kh, kw = call.shape("w")[1:]
    rows, padded = _rows_at_once(call, co, px, unrolled), unrolled.padded_rows
    sizes = {"CO": co, "PX": px, "KW": kw, "SW": call["stride"][1], "DW": call["dilation"][1]}
    sizes |= {"LEFT": call["padding"][1], "SUBGROUP": lanes, "ROWS": rows, "PADDED_ROWS": padded}
    loads = {"X_VEC4": _input_loads(call, px, COSTS.of(device))[1], "Y_VEC4": _y_vec4(call, px)}
    pack, e = dataclasses.replace(packing(call, params), inner_step=padded * kw), Epilogue.of(call, device)
    step = Dispatch(
        e.variant(SUBGROUP),
        buffers(e, "packed"),
        *over_workgroups(_blocks(call, co, px, local), local, device),
        push(call, e),
        {**e.constants, **sizes, **loads},
        loop_iterations=ceil_div(c_in * kh, rows) if rows else c_in * (1 + kh),
    )
    return e.complete(pack.program(device, step), call.shape("y"), device)


SHORT_SPAN = short_span("a row of taps over", lambda call: span(call, 1, 1))

SUBGROUP_TILE = Route(
    "subgroup_tile",
    _build,
    finishing(SUBGROUP, PACK_TILES),
    why="where every load goes lane by lane, loads are what a convolution costs: one load brings weights for the whole "
    "subgroup, shuffles hand them out, and inputs come as vec4 where rows allow it",
    must=(FLOATS, SHUFFLE, SHORT_SPAN),
    prefer=(SUITS_SUBGROUP,),
    params=_params,
)
