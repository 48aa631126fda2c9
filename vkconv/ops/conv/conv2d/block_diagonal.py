"""conv2d of many thin groups as one of fewer, wider groups, whose weights have zeros between those of the groups that
went into one: tiles of matrix units are wider than a thin group."""

import dataclasses
from collections.abc import Mapping

from vkconv.call import Call
from vkconv.core import align, divisors
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops.conv.common import GROUPED
from vkconv.ops.conv.conv2d import coopmat, coopmat_fragment
from vkconv.ops.conv.conv2d.coopmat import COOPERATIVE
from vkconv.ops.conv.conv2d.coopmat_fragment import COOPERATIVE_FRAGMENT
from vkconv.ops.core.base import first
from vkconv.ops.core.requirements import ON_GPU
from vkconv.ops.core.views import View
from vkconv.ops.kernels.coopmat import HALF
from vkconv.ops.kernels.strided import STRIDED_COPY, strided_copy, walk_defaults
from vkconv.ops.kernels.zero_insertion import FILL, fill
from vkconv.policy import Policy
from vkconv.program import Composite, Inner
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route, Sub

_INNER = "conv2d"
# Rows of the smallest tile of matrices, and the vectors that channels are read by.
_ROWS, _DEPTH = 32, 8


@dataclasses.dataclass(frozen=True, slots=True)
class Thin:
    """Groups of so many output channels are joined (0 at most: none), where that makes at most ``most_products`` times
    the products of whole tiles."""

    least_rows: int
    most_rows: int
    most_products: float


_THIN = Policy("conv2d.block_diagonal", Thin)


def _joined(call: Call, join: int) -> Call:
    """The call with ``join`` groups made one of, and weights of that shape."""
    c_out, in_group, kh, kw = call.shape("w")
    w = call.operands["w"]
    assert w is not None
    wide = TensorSpec((c_out, in_group * join, kh, kw), w.dtype)
    attrs = {**call.attrs, "groups": int(call["groups"]) // join}
    return dataclasses.replace(call, operands={**call.operands, "w": wide}, attrs=attrs)


def _products(call: Call, join: int) -> int:
    """Products of whole tiles for a pixel and a tap, of so many groups joined."""
    groups, (c_out, in_group) = int(call["groups"]), call.shape("w")[:2]
    return groups // join * align(c_out // groups * join, _ROWS) * align(in_group * join, _DEPTH)


def _by_rule(call: Call) -> int:
    """How many groups are joined: as many as make the least products of whole tiles, the most of these, since each
    workgroup then has more to sum."""
    return min(divisors(int(call["groups"]))[1:] or (1,), key=lambda join: (_products(call, join), -join))


def _params(call: Call, device: Device) -> Legal:
    return {"join": first(_by_rule(call), divisors(int(call["groups"]))[1:])}


def _inner(call: Call, device: Device, params: Params) -> Mapping[str, Sub]:
    return {_INNER: Sub(_joined(call, params["join"]), (COOPERATIVE_FRAGMENT, COOPERATIVE))}


def _build(call: Call, device: Device, params: Params) -> Composite:
    join = params["join"]
    c_out, in_group, kh, kw = call.shape("w")
    groups, depth = int(call["groups"]), in_group * kh * kw
    rows, total = c_out // groups, c_out * depth * join
    # A row of a joined group has the weights of its own group, behind those of the ones before it.
    dims = (groups // join, join, rows, depth)
    of = (join * rows * depth, rows * depth, depth, 1)
    to = (join * rows * depth * join, rows * depth * join + depth, depth * join, 1)
    zeros = fill(total, 0, device, walk_defaults(device), "diagonal")
    spread = (zeros, *strided_copy(device, walk_defaults(device), "w", "diagonal", dims, of, to))
    step = Inner(_INNER, {"w": "diagonal"})
    return Composite((step,), spread, {"diagonal": 4 * total}, elements=frozenset({"diagonal"}))


_AS_JOINED = View(lambda call: _joined(call, _by_rule(call)), {})


def _rows(call: Call) -> int:
    return int(call.shape("y")[1]) // int(call["groups"])


_PAYS = Requirement(
    "groups as thin as are joined on such devices",
    lambda call, device: _THIN.of(device).least_rows <= _rows(call) <= _THIN.of(device).most_rows,
    lambda call, device: (
        f"{_rows(call)} output channels, of {_THIN.of(device).least_rows} to {_THIN.of(device).most_rows}"
    ),
)
_FEW_PRODUCTS = Requirement(
    "groups that can be joined without too many products of zeros",
    lambda call, device: _products(call, _by_rule(call)) <= _THIN.of(device).most_products * _products(call, 1),
    lambda call, device: (
        f"{_by_rule(call)} joined make {_products(call, _by_rule(call)) / _products(call, 1):.1f} times as many, at "
        f"most {_THIN.of(device).most_products:g}"
    ),
)


def _beside_apart(call: Call, device: Device) -> tuple[float, float] | None:
    """Microseconds of the joined groups, and of the groups as they are by fragments; None where these are not taken."""
    joined = _joined(call, _by_rule(call))
    ways = coopmat.default_us(joined, device), coopmat_fragment.default_us(joined, device)
    known, apart = [us for us in ways if us is not None], coopmat_fragment.default_us(call, device)
    return (min(known), apart) if known and apart is not None else None


_LESS_THAN_APART = Requirement(
    "no more time than cooperative_fragment takes for the groups as they are, by the costs of both",
    lambda call, device: (us := _beside_apart(call, device)) is None or us[0] <= us[1],
    lambda call, device: "about {:.3g} us and {:.3g}".format(*(_beside_apart(call, device) or (0.0, 0.0))),
)

BLOCK_DIAGONAL = Route(
    "block_diagonal",
    _build,
    tuple(dict.fromkeys((*COOPERATIVE.shaders, *COOPERATIVE_FRAGMENT.shaders, FILL, STRIDED_COPY))),
    why="tiles of matrix units are wider than a thin group: several groups are one, with zeros between their weights, "
    "which matrix units multiply faster than anything else computes without; an input that is not finite makes NaN in "
    "all groups that are joined with its own",
    must=(HALF, GROUPED, *(_AS_JOINED.need(need) for need in COOPERATIVE.must if need is not HALF)),
    prefer=(ON_GPU, _PAYS, _FEW_PRODUCTS, _LESS_THAN_APART),
    params=_params,
    by_call="as many groups as make the fewest products of whole tiles",
    inner=_inner,
    note=lambda call, device, params: (
        f"{params['join']} groups joined: {int(call['groups']) // params['join']} of "
        f"{call.shape('w')[1] * params['join']} channels to {_rows(call) * params['join']}"
    ),
)
