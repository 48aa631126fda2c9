"""The multiply-adds that are counted of the golden calls, on each route, are those of the call in its padded tiles."""

import functools
import math
import re
from collections.abc import Iterator, Mapping

import pytest
from shipped import EXHAUSTIVE

from vkconv.bench.suites import Entry
from vkconv.call import Call
from vkconv.cli.benched import read_entries
from vkconv.compilers.counts import count
from vkconv.compilers.mix import Kind
from vkconv.compilers.pipelines import Asked, Made, collect, pipeline_of
from vkconv.core import DType, ShaderError
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.conv.conv2d.space_to_depth import Blocked
from vkconv.route import judge

DEVICE = load_device("adreno-740")
FLOATS = (DType.F32, DType.F16, DType.BF16)
OPS_COUNTED = ("conv2d", "matmul", "conv_transpose2d", "conv2d_backward_data", "conv2d_backward_weight")
# A sum of 810000 turns in one invocation, which is too long to be walked: it has no bound, and says why.
TOO_LONG = {("conv2d_backward_weight", "direct", 810_000)}
SMALL = "conv2d:x=1x128x7x7,w=192x128x3x3,p=1x1x1x1,dtype=f32"


@functools.cache
def calls() -> Mapping[str, Call]:
    entries: list[Entry] = read_entries([], ["golden"], None, DEVICE, [])
    return {
        entry.text: entry.call
        for entry in entries
        if entry.call and entry.call.op in OPS_COUNTED and next(iter(entry.call.outputs.values())).dtype in FLOATS
    }


def routes_of(text: str, call: Call) -> Iterator[Made]:
    allowed = [route.name for route in OPS[call.op].routes if judge(route, call, DEVICE).allowed]
    for made in collect([Asked(call, text, route=name) for name in allowed], DEVICE, fixed_push=False):
        if not made.why:
            yield made


def multiplies(made: Made) -> float:
    return sum(
        count(launch, pipeline_of(launch), 64).dynamic.get(Kind.MULTIPLY, 0.0)
        * math.prod(launch.groups)
        * math.prod(pipeline_of(launch).local)
        for launch in made.launches
    )


def padded(size: int, unit: int) -> float:
    """How much more a size is in whole units."""
    return math.ceil(size / unit) * unit / size


def most(call: Call, made: Made) -> float:
    """How many times the call's arithmetic its tiles come to: m, n and k in whole tiles of the route's parameters, with
    either side of a tile along m, or along the n of an image."""
    params = {name.rpartition("/")[2]: value for name, value in made.params.items()}
    tile = [int(n) for n in re.findall(r"\d+", str(params.get("tile", "")))]
    columns, local = int(params.get("columns", 1)), int(params.get("local", 64))
    side = max(tile[:2], default=0)
    m_unit = max(side, int(params.get("channels", 1)), int(params.get("rows", 1)), columns)
    n_unit = max(side, columns * local)
    k_unit = tile[2] if len(tile) > 2 else 4 * local
    if call.op == "matmul":
        *_, m, k = call.shape("a")
        n = call.shape("b")[-1]
        return max(padded(m, m_unit) * padded(n, n_unit), padded(m, n_unit) * padded(n, m_unit)) * padded(k, k_unit)
    batch, c_out, height, width = call.shape("y")
    _, c_in, kernel_h, kernel_w = call.shape("w")
    m, n, k = c_out // int(call["groups"]), height * width, c_in * kernel_h * kernel_w
    if made.route == "space_to_depth":
        rows, columns = map(int, str(params["block"]).split("x"))
        blocked = math.prod(Blocked(call, (rows, columns)).inside.shape("w")[1:])
        return blocked / k * padded(m, m_unit) * padded(n, n_unit) * padded(blocked, k_unit)
    if made.route == "winograd":
        # A tile of outputs x outputs takes (outputs + 2)^2 products for 9 outputs^2, and transforms beside them.
        outputs = int(params["outputs"])
        tiles = math.ceil(height / outputs) * math.ceil(width / outputs)
        taken = (outputs + 2) ** 2 * tiles * batch / (9 * n * batch)
        return 1.5 * taken * padded(m, m_unit) * padded(tiles * batch, n_unit) * padded(c_in, k_unit)
    return padded(m, m_unit) * padded(n, n_unit) * padded(k, k_unit)


def inside(call: Call) -> float:
    """The part of the taps of a convolution that lies inside the image: routes may leave out the others."""
    if call.op != "conv2d":
        return 0.7
    part = 1.0
    for axis in range(2):
        size, kernel, out = (call.shape(name)[2 + axis] for name in ("x", "w", "y"))
        stride, before, dilation = call["stride"][axis], call["padding"][axis], call["dilation"][axis]
        taps = [position * stride - before + tap * dilation for position in range(out) for tap in range(kernel)]
        part *= sum(0 <= tap < size for tap in taps) / len(taps)
    return part


def check(text: str) -> None:
    call = calls()[text]
    needed = OPS[call.op].flops(call) / 2
    found = 0
    for made in routes_of(text, call):
        if call.op == "conv2d_backward_weight":
            batch, _, height, width = call.shape("dy")
            if (call.op, made.route, batch * height * width) in TOO_LONG:
                with pytest.raises(ShaderError, match="was not through after 1000000 blocks"):
                    multiplies(made)
                continue
        times = multiplies(made) / needed
        least = 0.2 if "winograd" in f"{made.route} {made.params}" else 0.95 * inside(call)
        assert times >= least, (made.route, made.params, times)
        if call.op in ("conv2d", "matmul"):
            # A multiplication of each output, for an activation, comes on top; and 64 invocations stand for all.
            outputs = next(iter(call.outputs.values())).size or 0
            assert times <= 1.05 * most(call, made) + 4 * outputs / needed, (made.route, made.params, times)
        found += 1
    assert found > 1


@pytest.mark.long
def test_a_small_convolution_is_counted_right_on_all_routes() -> None:
    check(SMALL)


@pytest.mark.long
@pytest.mark.parametrize("op", OPS_COUNTED)
def test_golden_calls_are_counted_right_on_all_routes(op: str) -> None:
    """Every second one of an op, or eighth: walking a call's programs takes seconds."""
    texts = [text for text, call in calls().items() if call.op == op]
    assert texts
    for text in texts[:: 2 if EXHAUSTIVE else 8]:
        check(text)
