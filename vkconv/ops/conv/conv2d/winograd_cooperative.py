"""conv2d in 16-bit floats by Winograd's minimal filtering F(2x2, 3x3), whose products are those of matrix units.

Transformed operands and sums have 16 bits, too. Larger tiles take fewer products and round more: of random inputs, over
32 and 512 channels in f16, the largest error by the largest result is 6e-4 by this, 2e-3 to 1e-2 by F(4x4, 3x3), and
storing the result makes 4e-4 of that.
"""

import dataclasses
import itertools
from collections.abc import Mapping

import numpy as np

from vkconv.call import Call
from vkconv.core import DType, align, bytes_str, ceil_div, shape_str
from vkconv.device import Device
from vkconv.ops.conv.common import GROUPS_1, NO_DILATION, STRIDE_1
from vkconv.ops.conv.conv2d import coopmat_fragment
from vkconv.ops.conv.conv2d.coopmat import COOPERATIVE, default_us, less_than
from vkconv.ops.conv.conv2d.winograd import OUTPUT, PRODUCT, WEIGHTS, Pass, between_transforms, products
from vkconv.ops.core.base import F64
from vkconv.ops.core.bindings import most_bound
from vkconv.ops.core.requirements import INT32, ON_GPU
from vkconv.ops.kernels.coopmat import EIGHT, NEEDS
from vkconv.ops.kernels.epilogue import finishing
from vkconv.ops.kernels.launch_costs import LaunchCosts
from vkconv.ops.kernels.winograd import INPUT, SOURCE, WinogradTiles
from vkconv.policy import Policy
from vkconv.program import Composite
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route, Sub

_OUTPUTS, _TAPS = 2, 3


@dataclasses.dataclass(frozen=True, slots=True)
class Costs(LaunchCosts):
    """Of the transforms of inputs and sums; MiB of scratch of a pass over some of the tiles, the default first."""

    scratch_mib: tuple[int, ...] = (256,)


_COSTS = Policy("conv2d.winograd_cooperative", Costs)


def _channels(call: Call) -> tuple[int, int]:
    return call.shape("x")[1], call.shape("y")[1]


def _tiles_of(call: Call) -> WinogradTiles:
    return WinogradTiles.of(_OUTPUTS, _TAPS, call.shape("y")[0], call.shape("y")[2:])


def _step(call: Call, mib: int) -> int:
    """Tiles of a pass, in whole words: of inputs and sums in 16 bits at most so many MiB."""
    tiles = _tiles_of(call)
    passes = max(ceil_div(2 * tiles.points * sum(_channels(call)) * tiles.total, mib << 20), 1)
    return align(ceil_div(max(tiles.total, 1), passes), EIGHT)


def _product(call: Call, step: int) -> Call:
    return products(call, _tiles_of(call).points, step, call.half or DType.F32)


def products_of(call: Call, device: Device) -> Call:
    """The product of a pass, by the default of the parameters."""
    return _product(call, _step(call, _COSTS.of(device).scratch_mib[0]))


def _params(call: Call, device: Device) -> Legal:
    sizes: dict[int, int] = {}
    for mib in _COSTS.of(device).scratch_mib:
        sizes.setdefault(_step(call, mib), mib)
    return {"scratch_mib": tuple(sizes.values())}


def _inner(call: Call, device: Device, params: Params) -> Mapping[str, Sub]:
    return {PRODUCT: Sub(_product(call, _step(call, params["scratch_mib"])), (COOPERATIVE,))}


def _build(call: Call, device: Device, params: Params) -> Composite:
    tiles, step = _tiles_of(call), _step(call, params["scratch_mib"])
    passes = [Pass(first, step) for first in range(0, tiles.total, step)]
    return between_transforms(call, device, tiles, passes, halves=True)


# The transforms in one dimension, as shaders/kernels/winograd.glsl has them: of inputs, weights and sums.
_OF_INPUT = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], np.float64)
_OF_WEIGHT = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float64)
_OF_SUMS = np.array([[1, 1, 1, 0], [0, 1, -1, -1]], np.float64)
_INPUT_SCALE = 0.25  # so that no transformed input is beyond the largest number


def _covered(call: Call, x: F64) -> F64:
    """The inputs that windows of whole tiles cover, zeros where there are none."""
    tiles = _tiles_of(call)
    for axis, side, pad in zip((2, 3), (tiles.rows, tiles.columns), call["padding"][:2], strict=True):
        at = np.arange(_OUTPUTS * side + _TAPS - 1) - pad
        inside = (at >= 0) & (at < x.shape[axis])
        taken = np.take(x, np.clip(at, 0, x.shape[axis] - 1), axis)
        x = np.where(inside.reshape([-1 if i == axis else 1 for i in range(4)]), taken, 0.0)
    return x


def rounding(call: Call, factors: Mapping[str, F64]) -> F64:
    """How far each sum of products (N, C_out, OH, OW) may be off for what is rounded to 16 bits on the way: what
    rounding the transformed inputs and weights makes of it, which is the same whoever does it, and half a unit of each
    sum at a point that it is made of."""
    tiles, half = _tiles_of(call), call.half or DType.F16
    unit, subnormal = 0.5 * 2.0**-half.mantissa_bits, 2.0**-25 if half is DType.F16 else 0.0
    x, w, (n, c_out, oh, ow) = _covered(call, factors["x"]), factors["w"], call.shape("y")
    c_in, rows, columns = w.shape[1], _OUTPUTS * tiles.rows, _OUTPUTS * tiles.columns

    def rounded(values: F64) -> F64:
        return values.astype(half.numpy).astype(np.float64)

    off, stored = (np.zeros((_OUTPUTS, _OUTPUTS, c_out, tiles.total)) for _ in range(2))
    for i, j in itertools.product(range(len(_OF_INPUT)), repeat=2):
        of_input = np.zeros((n, c_in, tiles.rows, tiles.columns))
        for a, b in itertools.product(np.flatnonzero(_OF_INPUT[i]), np.flatnonzero(_OF_INPUT[j])):
            of_input += _OF_INPUT[i, a] * _OF_INPUT[j, b] * x[:, :, a : a + rows : 2, b : b + columns : 2]
        inputs = of_input.transpose(1, 0, 2, 3).reshape(c_in, -1)
        weights = np.einsum("a,kcab,b->kc", _OF_WEIGHT[i], w, _OF_WEIGHT[j])
        sums = rounded(weights) @ rounded(_INPUT_SCALE * inputs) / _INPUT_SCALE
        taken = np.multiply.outer(_OF_SUMS[:, i], _OF_SUMS[:, j])
        off += np.multiply.outer(taken, sums - weights @ inputs)
        stored += np.multiply.outer(np.abs(taken), unit * np.abs(sums) + subnormal / _INPUT_SCALE)
    error = np.abs(off) + stored
    planes = error.reshape(_OUTPUTS, _OUTPUTS, c_out, n, tiles.rows, tiles.columns).transpose(3, 2, 4, 0, 5, 1)
    return np.asarray(planes.reshape(n, c_out, rows, columns)[:, :, :oh, :ow])


def _passes(call: Call, device: Device) -> int:
    """By the default of the parameters."""
    return ceil_div(_tiles_of(call).total, _step(call, _COSTS.of(device).scratch_mib[0]))


def moved_bytes(call: Call, device: Device) -> int:
    """What the transforms of inputs and sums of a pass read and write."""
    product = products_of(call, device)
    whole = call.specs["x"].nbytes + call.outputs["y"].nbytes
    return whole // _passes(call, device) + product.specs["x"].nbytes + product.outputs["y"].nbytes


def _estimated_us(call: Call, device: Device) -> float | None:
    """Of all steps, by the defaults of the parameters; None without costs of the product."""
    product = default_us(products_of(call, device), device)
    if product is None:
        return None
    return _passes(call, device) * (product + _COSTS.of(device).of(moved_bytes(call, device), device))


def _largest_bytes(call: Call, device: Device) -> int:
    """Of transformed weights, and inputs and sums of a pass, the most, by the default of the parameters."""
    product = products_of(call, device)
    return max(product.specs[name].nbytes for name in ("x", "w", "y"))


KERNEL = Requirement.of(
    "a 3x3 kernel", lambda call: call.shape("w")[2:], lambda kernel: kernel == (_TAPS, _TAPS), shape_str
)
BOUND = Requirement(
    "transformed operands that a binding can hold",
    lambda call, device: _largest_bytes(call, device) <= most_bound(device),
    lambda call, device: f"{bytes_str(_largest_bytes(call, device))}, {bytes_str(most_bound(device))} is the most",
)
LESS_THAN_OTHERS = less_than(
    _estimated_us,
    "for all steps",
    {"cooperative": default_us, "cooperative_fragment": coopmat_fragment.default_us},
)

WINOGRAD_COOPERATIVE = Route(
    "winograd_cooperative",
    _build,
    tuple(dict.fromkeys((*finishing(INPUT, WEIGHTS, OUTPUT), *COOPERATIVE.shaders))),
    why="3x3 with stride 1 takes 2.25 times fewer products between transforms of tiles of 2x2, on the GPU's matrix "
    "units; transformed operands and sums have 16 bits, which rounds about as much as rounding the input does; an "
    "input that is not finite makes NaN of the whole tiles that it is in",
    must=(*NEEDS, GROUPS_1, KERNEL, STRIDE_1, NO_DILATION, INT32, BOUND),
    prefer=(ON_GPU, LESS_THAN_OTHERS),
    source=SOURCE,
    params=_params,
    inner=_inner,
    rounding=rounding,
)
