"""conv2d by Winograd's minimal filtering: fewer products, as a batch of matrix products between transforms."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, bytes_str, shape_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.conv.common import GROUPS_1, NO_DILATION, STRIDE_1
from vkconv.ops.conv.conv2d.direct import POINTWISE_ROUTE
from vkconv.ops.conv.conv2d.implicit_gemm import WHOLE_SUMS, estimated_us
from vkconv.ops.conv.conv2d.subgroup import SUBGROUP_TILE
from vkconv.ops.conv.tiles import SMALLEST, TILES
from vkconv.ops.core.base import Attrs, over_invocations
from vkconv.ops.core.bindings import most_bound
from vkconv.ops.core.requirements import FLOATS
from vkconv.ops.kernels.epilogue import NO_EPILOGUE, Epilogue, finishing
from vkconv.ops.kernels.winograd import (
    INPUT,
    OUTPUTS,
    SOURCE,
    TRANSFORMS,
    WinogradTiles,
    counted_outputs,
    inputs,
    kernels_str,
    local_size,
    outputs_of,
)
from vkconv.policy import Policy
from vkconv.program import Composite, Dispatch, Inner
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route, Sub

WEIGHTS, OUTPUT = Shader(shaders.kernels.WINOGRAD_WEIGHTS), Shader(shaders.kernels.WINOGRAD_OUTPUT)
PRODUCT = "product"
# The rounding error of m = 4 grows with the transforms, not with the sum: with few channels it is more than a direct
# sum may have. Largest error over the allowed one, lavapipe, 30x31: 3 channels 1.3, 16 0.6, 37 0.18, 512 0.05; m = 2
# at most 0.15. Transforms of 5x5 kernels with m = 2 have as many points: 1 channel 1.1, 2 0.6, 3 0.4, 8 0.2; with m = 4
# they have eight on a side: 1 channel 2.8, 2 and 3 1.1, 8 0.8, 16 0.3, 32 0.2, 192 0.03.
_LEAST_CHANNELS, _LEAST_CHANNELS_5X5, _LEAST_CHANNELS_5X5_BY_4X4 = 32, 8, 16


def _tiles_of(call: Call, m: int) -> WinogradTiles:
    return WinogradTiles.of(m, call.shape("w")[2], call.shape("y")[0], call.shape("y")[2:])


def products(call: Call, batch: int, count: int, dtype: DType = DType.F32) -> Call:
    """The products at each point, (c_out x c_in) by (c_in x count), as one grouped 1x1 conv2d."""
    c_in, c_out = _channels(call)
    x = TensorSpec((1, batch * c_in, 1, count), dtype)
    w = TensorSpec((batch * c_out, c_in, 1, 1), dtype)
    y = TensorSpec((1, batch * c_out, 1, count), dtype)
    attrs: Attrs = {"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": batch}
    attrs |= {"auto_pad": "explicit", **NO_EPILOGUE}
    return Call("conv2d", {"x": x, "w": w, "b": None}, {"y": y}, attrs)


@dataclasses.dataclass(frozen=True, slots=True)
class Pass:
    """Some of the tiles, and what multiplies them where that is another call than that of other passes."""

    first: int
    count: int
    product: Call | None = None


_PRODUCTS = SUBGROUP_TILE, WHOLE_SUMS, dataclasses.replace(POINTWISE_ROUTE, prefer=())


def _params(call: Call, device: Device) -> Legal:
    outputs = _outputs(call, device)
    return {"outputs": outputs, "scratch_mib": _scratch_mib(call, device, outputs[0])}


def _scratch_mib(call: Call, device: Device, m: int) -> tuple[int, ...]:
    return _tiles_of(call, m).scratch_sizes(sum(_channels(call)), _LEAST.of(device).scratch_mib)


def _pass_of(call: Call, params: Params) -> tuple[WinogradTiles, int]:
    """All tiles, and how many a pass takes; the last may take fewer."""
    tiles = _tiles_of(call, params["outputs"])
    return tiles, tiles.chunk(sum(_channels(call)), params["scratch_mib"])


def _inner(call: Call, device: Device, params: Params) -> Mapping[str, Sub]:
    tiles, step = _pass_of(call, params)
    return {PRODUCT: Sub(products(call, tiles.points, step), _PRODUCTS)}


def _transformed_bytes(call: Call, m: int) -> int:
    """Of the weights, by tiles of so many outputs on a side."""
    return 4 * _tiles_of(call, m).points * math.prod(_channels(call))


KERNEL = Requirement.of(
    f"a {kernels_str()} kernel",
    lambda call: call.shape("w")[2:],
    lambda kernel: kernel[0] == kernel[1] and kernel[0] in OUTPUTS,
    shape_str,
)
# The transforms round more than a short sum may.
LONG_SUMS = Requirement(
    f"at least {_LEAST_CHANNELS_5X5} input channels for a 5x5 kernel",
    lambda call, device: call.shape("w")[2] == 3 or call.shape("x")[1] >= _LEAST_CHANNELS_5X5,
    lambda call, device: f"{call.shape('x')[1]} channels",
)
TRANSFORMED_BOUND = Requirement(
    "transformed weights that a binding can hold",
    lambda call, device: _transformed_bytes(call, _default(call, device)) <= most_bound(device),
    lambda call, device: (
        f"{bytes_str(_transformed_bytes(call, _default(call, device)))}, {bytes_str(most_bound(device))} is the most"
    ),
)


def _outputs(call: Call, device: Device) -> tuple[int, ...]:
    """Of a tile, on a side, the default first: what rounds least alone where sums are short; of others those whose
    transformed weights a binding can hold."""
    bound = most_bound(device)

    def us(m: int) -> float | None:
        return _estimated_us(call, device, m) if _transformed_bytes(call, m) <= bound else None

    r, c_in = call.shape("w")[2], call.shape("x")[1]
    long_sum = c_in >= (_LEAST_CHANNELS if r == 3 else _LEAST_CHANNELS_5X5_BY_4X4)
    default, *others = outputs_of(r, long_sum, device, us)
    return default, *(m for m in others if _transformed_bytes(call, m) <= bound)


def _default(call: Call, device: Device) -> int:
    return _outputs(call, device)[0]


def between_transforms(
    call: Call, device: Device, tiles: WinogradTiles, passes: Sequence[Pass], halves: bool
) -> Composite:
    """The products of passes between their transforms. With ``halves`` transformed operands and sums are elements of
    the call, two tiles a lane; else f32."""
    (c_in, c_out), local, e = _channels(call), local_size(device), Epilogue.of(call, device)
    extents = dict(zip(("c_out", "oh", "ow"), call.shape("y")[1:], strict=True))
    of_lane, step = 2 if halves else 1, max(one.count for one in passes)
    steps: list[Dispatch | Inner] = []
    for one in passes:
        steps += [
            inputs(tiles, call.shape("x"), call["padding"], one.first, one.count, device, pairs=halves),
            Inner(PRODUCT, {"x": "inputs", "w": "transformed", "y": "sums"}, one.product),
            Dispatch(
                e.variant(OUTPUT),
                {"p": "sums", "y": e.target, **e.buffers},
                *over_invocations(c_out * one.count // of_lane, local, device),
                {**extents, **tiles.push, **tiles.of_pass(one.first, one.count), **e.push},
                {**tiles.constants, "TILES": of_lane, **e.constants},
            ),
        ]
    weights = Dispatch(
        WEIGHTS,
        {"weight": "w", "u": "transformed"},
        *over_invocations(c_out * c_in, local, device),
        {"c_out": c_out, "c_in": c_in},
        tiles.constants,
    )
    packed = {"transformed": 4 * tiles.points * c_out * c_in}
    scratch = {"inputs": 4 * tiles.points * c_in * step, "sums": 4 * tiles.points * c_out * step}
    elements = frozenset({*packed, *scratch}) if halves else frozenset()
    made = Composite(tuple(steps), (weights,), packed, scratch, elements)
    return e.complete(made, call.shape("y"), device)


def _build(call: Call, device: Device, params: Params) -> Composite:
    tiles, step = _pass_of(call, params)
    starts = range(0, tiles.total, step)
    whole, rest = (Pass(at, step) for at in starts[:-1]), tiles.total - starts[-1]
    last = Pass(starts[-1], rest, products(call, tiles.points, rest) if rest < step else None)
    return between_transforms(call, device, tiles, (*whole, last), halves=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Least:
    """The least that winograd is taken for: channels in and out, tiles, and tiles times the fewer channels; taps on a
    side of the kernels that it is taken for; scratch of a pass over some of the tiles, MiB, the default first. Where
    transforms and products take no less than implicit_gemm, by the costs of each, that is taken. On devices without
    costs of few channels in that are whole k-tiles of implicit_gemm it takes at most ``thin_tiles`` (0: any number).
    ``patches_us``: what transforms of larger tiles than thresholds count take beyond their estimate, since few
    invocations have many elements each."""

    taps: tuple[int, ...]
    c_in: int
    c_out: int
    tiles: int
    product: int
    scratch_mib: tuple[int, ...]
    thin_tiles: int = 0
    patches_us: float = 0.0


_LEAST = Policy("conv2d.winograd", Least)


def _channels(call: Call) -> tuple[int, int]:
    return call.shape("x")[1], call.shape("y")[1]


def _counted_tiles(call: Call) -> WinogradTiles:
    return _tiles_of(call, counted_outputs(call.shape("w")[2]))


def _many_channels(call: Call, device: Device) -> bool:
    least, (c_in, c_out) = _LEAST.of(device), _channels(call)
    return c_in >= least.c_in and c_out >= least.c_out


def _many_tiles(call: Call, device: Device) -> bool:
    least, tiles = _LEAST.of(device), _counted_tiles(call).total
    return tiles >= least.tiles and tiles * min(_channels(call)) >= least.product


def _in_whole_k_tiles(call: Call) -> bool:
    return _channels(call)[0] % TILES[SMALLEST].depth == 0


def _compared(call: Call, device: Device) -> tuple[float, float] | None:
    """Estimated us of all steps and of implicit_gemm, where that has costs. Channels that are less than two k-tiles and
    not one are not compared: gathering them one by one costs more than its estimate."""
    compared = _channels(call)[0] >= _LEAST_CHANNELS or _in_whole_k_tiles(call)
    gemm = estimated_us(call, device) if compared else None
    own = None if gemm is None else _estimated_us(call, device, _default(call, device))
    return None if gemm is None or own is None else (own, gemm)


def _estimated_us(call: Call, device: Device, m: int) -> float | None:
    """Of all steps but those of the weights, by tiles of so many outputs on a side; None where transforms were not
    timed."""
    transforms, tiles = TRANSFORMS.of(device), _tiles_of(call, m)
    if not transforms.timed_on:
        return None
    product = estimated_us(products(call, tiles.points, tiles.total), device, WHOLE_SUMS)
    moved = 2 * tiles.points * tiles.total * sum(_channels(call))
    us = (product or 0.0) + transforms.us(4 * (call.specs["x"].size + call.outputs["y"].size + moved), device)
    return us + (_LEAST.of(device).patches_us if m > counted_outputs(tiles.r) else 0.0)


def _compared_said(call: Call, device: Device) -> str:
    us = _compared(call, device)
    if us:
        return "about {:.3g} us and {:.3g}".format(*us)
    return f"{_tiles_of(call, _default(call, device)).total} tiles of {_channels(call)[0]} channels, not compared"


def _saves(call: Call, device: Device) -> bool:
    us, most = _compared(call, device), _LEAST.of(device).thin_tiles
    if us:
        return us[0] < us[1]
    thin = most > 0 and _channels(call)[0] < _LEAST_CHANNELS and _in_whole_k_tiles(call)
    return not thin or _tiles_of(call, _default(call, device)).total <= most


LESS_THAN_GEMM = Requirement(
    "less time for all steps than implicit_gemm takes, by its costs, or without them few tiles of few channels",
    _saves,
    _compared_said,
)
MANY_CHANNELS = Requirement(
    "as many channels as pay on such devices",
    _many_channels,
    lambda call, device: "{} in and {} out, at least {} and {}".format(
        *_channels(call), _LEAST.of(device).c_in, _LEAST.of(device).c_out
    ),
)
# Transformed weights stay f32, and those of 3x3 are four times as many: with f16 they would take eight times the bytes.
WEIGHTS_IN_F32 = Requirement.of(
    "weights of f32, as the transformed ones are, of which there are more",
    lambda call: call.half,
    lambda half: half is None,
    lambda half: f"{half} weights, twice the bytes each once transformed" if half else "f32",
)
TAPS_THAT_PAY = Requirement(
    "a kernel of a size that pays on such devices",
    lambda call, device: call.shape("w")[2] in _LEAST.of(device).taps,
    lambda call, device: f"{shape_str(call.shape('w')[2:])}, taken for {kernels_str(_LEAST.of(device).taps)}",
)
MANY_TILES = Requirement(
    "as many tiles as pay on such devices",
    _many_tiles,
    lambda call, device: (
        f"{_counted_tiles(call).total} tiles, at least {_LEAST.of(device).tiles}; times the fewer channels "
        f"{_counted_tiles(call).total * min(_channels(call))}, at least {_LEAST.of(device).product}"
    ),
)

WINOGRAD = Route(
    "winograd",
    _build,
    tuple(dict.fromkeys((*finishing(INPUT, WEIGHTS, OUTPUT), *(s for route in _PRODUCTS for s in route.shaders)))),
    why="3x3 with stride 1 takes 2.25 or 4 times fewer products between cheap transforms of tiles, 5x5 2.78 or 6.25 "
    "times; an input that is not finite makes NaN of the whole tiles that it is in",
    must=(FLOATS, GROUPS_1, KERNEL, STRIDE_1, NO_DILATION, LONG_SUMS, TRANSFORMED_BOUND),
    prefer=(WEIGHTS_IN_F32, TAPS_THAT_PAY, MANY_CHANNELS, MANY_TILES, LESS_THAN_GEMM),
    params=_params,
    inner=_inner,
    source=SOURCE,
)
