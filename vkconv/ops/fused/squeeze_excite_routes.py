"""The routes of squeeze_excite: everything in a launch, the means and then both products, and each step in turn."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import bytes_str, ceil_div
from vkconv.cost import compute_units
from vkconv.device import Device, target_of
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.conv.conv2d.direct import WHOLE_VEC4
from vkconv.ops.conv.conv2d.op import CONV2D
from vkconv.ops.core.activation import activation
from vkconv.ops.core.base import most_shared_bytes, over_workgroups
from vkconv.ops.core.requirements import FLOATS, ON_GPU, loop_iterations
from vkconv.ops.core.workgroups import sharing
from vkconv.ops.fused.convolutions import POINTWISE_ROUTES, InRow, Link
from vkconv.ops.fused.in_turn import REDUCE_ROUTES, UNFUSED
from vkconv.ops.reduce.op import REDUCE
from vkconv.policy import Policy
from vkconv.program import Composite, Dispatch, Inner, Program
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route, Sub

GATES = Shader(shaders.fused.SQUEEZE_EXCITE)
_BUFFERS = 6
# Its products are of planes of one pixel.
_PRODUCT_ROUTES = tuple(route for route in POINTWISE_ROUTES if WHOLE_VEC4 not in route.must)
_MEANS, _MEAN = "means", "mean"


@dataclasses.dataclass(frozen=True, slots=True)
class Lanes:
    """Lanes that share a sum: as many as read side by side, and at most where some would have nothing else to do."""

    side_by_side: int
    most: int


_LANES = Policy("fused.gate_lanes", Lanes)


def _means_spec(call: Call) -> TensorSpec:
    x = call.operands["x"]
    assert x is not None
    return TensorSpec((*x.dims[:2], 1, 1), x.dtype)


def _links(call: Call) -> Sequence[Link]:
    """Both products, as convolutions of the means, which are the first one's x."""

    def link(name: str, x: TensorSpec, source: str, of: str, act: str) -> Link:
        operands = {"x": x, "w": call.operands[f"w{of}"], "b": call.operands.get(f"b{of}")}
        reads = {"x": source, "w": f"w{of}", **({"b": f"b{of}"} if call.has(f"b{of}") else {})}
        attrs = {"act": call[act], "act_a": call[f"{act}_a"], "act_b": call[f"{act}_b"]}
        return Link(name, CONV2D.call(operands, attrs), reads)

    squeeze = link("squeeze", _means_spec(call), _MEANS, "1", "act")
    return squeeze, link("excite", squeeze.call.outputs["y"], squeeze.name, "2", "gate")


PRODUCTS = InRow(_links)


def _mean_call(call: Call) -> Call:
    return REDUCE.call({"x": call.operands["x"]}, {"op": "mean", "axes": (2, 3), "keepdims": True})


def _lanes(length: int, rows: int, local: int, device: Device) -> int:
    """Lanes that share a sum of so many: enough to read side by side, and more where rows leave some without any."""
    lanes, rule = 1, _LANES.of(device)
    while 2 * lanes <= min(length, rule.most) and (lanes < rule.side_by_side or 2 * lanes * rows <= local):
        lanes *= 2
    return lanes


def _sizes(call: Call, plane: int, local: int, device: Device) -> dict[str, int]:
    c, (hidden, gates) = call.shape("x")[1], (call.shape("w1")[0], call.shape("w2")[0])
    lanes = {
        "MEAN_LANES": _lanes(plane, c, local, device),
        "SQUEEZE_LANES": _lanes(c, hidden, local, device),
        "EXCITE_LANES": _lanes(hidden, gates, local, device),
    }
    return {"CHANNELS": c, "HIDDEN": hidden, "LOCAL": local, **lanes}


def _iterations(call: Call, plane: int, local: int, device: Device) -> int:
    """Loop iterations of an invocation: rows, what it adds of each, and the sums of lanes."""
    s = _sizes(call, plane, local, device)
    steps = (
        (s["CHANNELS"], plane, s["MEAN_LANES"]),
        (s["HIDDEN"], s["CHANNELS"], s["SQUEEZE_LANES"]),
        (call.shape("w2")[0], s["HIDDEN"], s["EXCITE_LANES"]),
    )
    return sum(
        ceil_div(rows * lanes, local) * (1 + ceil_div(length, lanes) + lanes.bit_length())
        for rows, length, lanes in steps
    )


def _shared_bytes(call: Call, local: int) -> int:
    return 4 * (call.shape("x")[1] + call.shape("w1")[0] + local)


def _dispatch(call: Call, device: Device, local: int, source: str, plane: int) -> Dispatch:
    """The launch that makes gates of ``source``, whose channels have so many pixels."""
    numbers = {name: float(call[name]) for name in ("act_a", "act_b", "gate_a", "gate_b")}
    there = {name: name if call.has(name) else None for name in ("b1", "b2")}
    ids = {name.upper(): activation(str(call[name])).id for name in ("act", "gate")}
    return Dispatch(
        GATES,
        {"x": source, "w1": "w1", "w2": "w2", "y": "y", **there},
        *over_workgroups(call.shape("x")[0], local, device),
        {"images": call.shape("x")[0], "plane": plane, "gates": call.shape("w2")[0], **numbers},
        {**_sizes(call, plane, local, device), **ids, "HAS_B1": call.has("b1"), "HAS_B2": call.has("b2")},
        _shared_bytes(call, local),
        _iterations(call, plane, local, device),
    )


def _params(call: Call, device: Device) -> Legal:
    return {"local": sharing(device)}


def _one_launch(call: Call, device: Device, params: Params) -> Program:
    plane = math.prod(call.shape("x")[2:])
    return Program((_dispatch(call, device, params["local"], "x", plane),))


def _two_launches(call: Call, device: Device, params: Params) -> Composite:
    steps = Inner(_MEAN, {"y": _MEANS}), _dispatch(call, device, params["local"], _MEANS, 1)
    return Composite(steps, scratch={_MEANS: 4 * _means_spec(call).size}, elements=frozenset({_MEANS}))


def _in_turn(call: Call, device: Device, params: Params) -> Composite:
    squeeze, excite = _links(call)
    steps = (
        Inner(_MEAN, {"y": _MEANS}),
        Inner(squeeze.name, {**squeeze.reads, "y": "hidden"}),
        Inner(excite.name, {**excite.reads, "x": "hidden"}),
    )
    scratch = {_MEANS: 4 * _means_spec(call).size, "hidden": 4 * math.prod(squeeze.call.shape("y"))}
    return Composite(steps, scratch=scratch, elements=frozenset(scratch))


def _mean_sub(call: Call, device: Device, params: Params) -> Mapping[str, Sub]:
    return {_MEAN: Sub(_mean_call(call), REDUCE_ROUTES)}


def _every_sub(call: Call, device: Device, params: Params) -> Mapping[str, Sub]:
    return {**_mean_sub(call, device, params), **{k.name: Sub(k.call, _PRODUCT_ROUTES) for k in _links(call)}}


RATE = Policy("fused.squeeze_excite", float)


def _between(call: Call, means: bool) -> int:
    """Bytes of what lies between the steps, written and read once: what is squeezed, and with ``means`` these."""
    nbytes = PRODUCTS.middle(call)[0].nbytes
    return 2 * (nbytes + (_means_spec(call).nbytes if means else 0))


def _read_bytes(call: Call, means: bool) -> int:
    """Bytes that the workgroup of an image reads: the weights, and with ``means`` the image."""
    x, w1, w2 = (call.operands[name] for name in ("x", "w1", "w2"))
    assert x is not None and w1 is not None and w2 is not None
    return w1.nbytes + w2.nbytes + (x.nbytes // x.dims[0] if means else 0)


def _pays(means: bool) -> Requirement:
    """The requirement that launches saved take longer than a compute unit that reads for an image alone."""
    saved = 2 if means else 1

    def times(call: Call, device: Device) -> tuple[float, float]:
        target, rate = target_of(device), RATE.of(device)
        turns = ceil_div(call.shape("x")[0], compute_units(device))
        return saved * target.value("launch_us"), turns * _read_bytes(call, means) / (rate * target.value("clock_mhz"))

    def test(call: Call, device: Device) -> bool:
        if not RATE.of(device):
            return False
        launches, reading = times(call, device)
        return reading < launches

    def actual(call: Call, device: Device) -> str:
        if not RATE.of(device):
            return "not known to pay there"
        launches, reading = times(call, device)
        return f"{reading:.1f} us to read {bytes_str(_read_bytes(call, means))}, {launches:.1f} us of launches saved"

    return Requirement("a workgroup that reads all of an image's in less time than the launches take", test, actual)


_HOLDS = Requirement(
    "shared memory that holds the means and what they are squeezed to",
    lambda call, device: _shared_bytes(call, max(sharing(device))) <= most_shared_bytes(device),
    lambda call, device: (
        f"{bytes_str(_shared_bytes(call, max(sharing(device))))} of {bytes_str(most_shared_bytes(device))}"
    ),
)
_BINDS = Requirement.of_device(
    f"{_BUFFERS} storage buffers in a launch",
    lambda device: int(device.limit("maxPerStageDescriptorStorageBuffers")),
    lambda count: count >= _BUFFERS,
    "{} storage buffers".format,
)


def _ends(means: bool) -> Requirement:
    def count(call: Call, device: Device) -> int:
        plane = math.prod(call.shape("x")[2:]) if means else 1
        return max(_iterations(call, plane, local, device) for local in sharing(device))

    return loop_iterations(count)


def _saves(means: bool) -> Callable[[Call, Device, Params], str]:
    def note(call: Call, device: Device, params: Params) -> str:
        launches = "2 launches" if means else "1 launch"
        return f"saves {bytes_str(_between(call, means))} written and read between the steps, and {launches}"

    return note


_SHADERS = tuple(dict.fromkeys(s for route in (*REDUCE_ROUTES, *_PRODUCT_ROUTES) for s in route.shaders))
_REDUCING = tuple(dict.fromkeys(s for route in REDUCE_ROUTES for s in route.shaders))

ROUTES: tuple[Route, ...] = (
    Route(
        "one_launch",
        _one_launch,
        (GATES,),
        why="a workgroup for each image takes the means and makes both products from shared memory: two launches less, "
        "whose work is next to nothing; but one compute unit reads an image",
        must=(FLOATS, _HOLDS, _BINDS, _ends(True)),
        prefer=(ON_GPU, _pays(True)),
        params=_params,
        note=_saves(True),
    ),
    Route(
        "two_launches",
        _two_launches,
        (GATES, *_REDUCING),
        why="the means by their own best route, all compute units reading, then a workgroup for each image makes both "
        "products: a launch less",
        must=(FLOATS, _HOLDS, _BINDS, _ends(False)),
        prefer=(ON_GPU, _pays(False)),
        params=_params,
        inner=_mean_sub,
        note=_saves(False),
    ),
    Route(
        UNFUSED,
        _in_turn,
        _SHADERS,
        why="the means, and each product by its own best route: what fusing must beat",
        must=(FLOATS,),
        inner=_every_sub,
        note=lambda call, device, params: f"{bytes_str(_between(call, True) // 2)} of scratch between the steps",
    ),
)
