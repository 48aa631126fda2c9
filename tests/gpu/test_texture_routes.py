"""conv2d from textures: exact on integers in both dimensions of the input, byte for byte again; memory, sharing."""

import itertools

import numpy as np
import pytest
from route_kit import draw

from vkconv.backend.runtime import select_device
from vkconv.check import expect, run_call
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.planner import Options
from vkconv.session import Session

pytestmark = pytest.mark.gpu

# Channels that are no multiple of 4, odd planes, several images, strides, dilation, padding of one side, tails of
# tiles; all that an epilogue has.
TILE = (
    "conv2d:x=1x4x5x5,w=4x4x1x1",
    "conv2d:x=2x5x7x11,w=7x5x3x3,b=7,p=1,act=relu",
    "conv2d:x=1x3x13x9,w=9x3x5x3,s=2x3,p=2x1x0x1",
    "conv2d:x=3x1x6x7,w=1x1x3x2,d=2x3,p=2",
    "conv2d:x=1x10x9x8,w=17x10x3x3,b=17,p=1,residual=1x17x9x8,act=relu,out_scale=0.5,out_shift=2",
    "conv2d:x=2x6x8x8,w=5x6x3x3,p=1,act=prelu,slope=5,b=5",
    "conv2d:x=1x2x3x3,w=3x2x3x3,p=4",
    "conv2d:x=2x7x5x6,w=13x7x3x3,b=13,p=1,dtype=f16",
    "conv2d:x=2x7x5x6,w=13x7x3x3,b=13,p=1,residual=2x13x5x6,dtype=bf16",
)
POINTWISE = (
    "conv2d:x=1x4x1x1,w=4x4x1x1",
    "conv2d:x=2x37x9x11,w=45x37x1x1,b=45,act=relu",
    "conv2d:x=3x6x7x5,w=10x6x1x1,s=2x3,residual=3x10x4x2",
    "conv2d:x=1x131x7x7,w=33x131x1x1,act=prelu,slope=33",
    "conv2d:x=2x20x10x6,w=34x20x1x1,b=34,dtype=f16",
    "conv2d:x=2x9x3x7,w=11x9x1x1,b=11,dtype=bf16",
)
DEPTHWISE = (
    "conv2d:x=2x7x9x11,w=7x1x3x3,b=7,p=1,g=7,act=relu",
    "conv2d:x=1x13x8x10,w=13x1x5x5,s=2,p=2,g=13",
    "conv2d:x=3x4x9x7,w=4x1x3x3,d=2,p=2,g=4,residual=3x4x9x7",
    "conv2d:x=1x5x6x5,w=5x1x2x7,p=0x3x1x3,g=5,act=prelu,slope=5",
    "conv2d:x=2x6x7x7,w=6x1x3x3,b=6,p=1,g=6,dtype=f16",
    "conv2d:x=1x6x7x5,w=6x1x1x1,s=2,g=6,dtype=bf16",
)
CASES = [
    *((text, "texture_tile") for text in (*TILE, *POINTWISE[:3])),
    *((text, "texture_pointwise") for text in POINTWISE),
    *((text, "texture_depthwise") for text in DEPTHWISE),
]


def _legal(text, route, device):
    (row,) = (one for one in OPS["conv2d"].routes if one.name == route)
    return row.legal(parse_call(text, OPS), select_device(device)[1])


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize(("text", "route"), CASES)
def test_textures_are_exact_on_integers(text, route, dims, device):
    call = parse_call(text, OPS)
    arrays = draw(call, "integers")
    legal = _legal(text, route, device)
    # The first and the last value of each other parameter.
    for pick in (0, -1):
        params = {name: values[pick] for name, values in legal.items()} | {"dims": dims}
        ran = run_call(call, arrays, device=device, route=route, params=params, replays=2)
        (first,), (again,) = ran.outputs
        assert ran.route == route
        np.testing.assert_array_equal(first, expect(call, arrays).outputs[0])
        assert first.tobytes() == again.tobytes()


def _layers(widths, weights="constant", width=9):
    """1x1 convolutions one after the other, with channels as given."""
    rng = np.random.default_rng(3)
    constants = {
        f"w{i}": rng.integers(-3, 4, (m, c, 1, 1)).astype(np.float32)
        for i, (c, m) in enumerate(itertools.pairwise(widths))
    }
    nodes = tuple(Node(f"n{i}", "conv2d", (f"v{i}", f"w{i}"), (f"v{i + 1}",), {}) for i in range(len(constants)))
    inputs = {"v0": TensorSpec((1, widths[0], 5, width))}
    out = (f"v{len(constants)}",)
    if weights == "input":
        specs = {name: TensorSpec(array.shape) for name, array in constants.items()}
        return Graph({**inputs, **specs}, out, nodes, {}, "layers"), constants
    return Graph(inputs, out, nodes, constants, "layers"), constants


def _expected(x, constants):
    for w in constants.values():
        x = np.einsum("nchw,mc->nmhw", x.astype(np.float64), w[:, :, 0, 0].astype(np.float64))
    return x


FORCED = Options(routes={"conv2d": "texture_pointwise"})


def test_scratch_textures_of_layers_in_turn_are_one_image_and_are_counted(device):
    graph, constants = _layers((6, 7, 5, 8))
    x = np.random.default_rng(1).integers(-3, 4, (1, 6, 5, 9)).astype(np.float32)
    with Session(graph, device, options=FORCED, poison=True) as session:
        np.testing.assert_array_equal(session.run({"v0": x})["v3"], _expected(x, constants))
        first, again = (session.run({"v0": x})["v3"].tobytes() for _ in range(2))
        assert first == again
        plan = session.plan
    # Inputs of two slices each: the three copies take turns in one image; weights have one each.
    scratch = [planned for name, planned in plan.textures.items() if name.startswith("texture:")]
    packed = [planned for name, planned in plan.textures.items() if name.startswith("packed texture:")]
    assert len(scratch) == 1 and len(packed) == 3
    assert scratch[0].nbytes == 16 * 9 * 5 * 2
    buffers = sum(nbytes for name, (nbytes, kind) in plan.buffers.items() if kind == "device")
    textures = sum(planned.nbytes for planned in plan.textures.values())
    assert plan.memory.device_bytes == buffers + textures


def test_weights_that_are_inputs_are_packed_at_each_run(device):
    graph, constants = _layers((6, 7, 5), weights="input")
    x = np.random.default_rng(1).integers(-3, 4, (1, 6, 5, 9)).astype(np.float32)
    with Session(graph, device, options=FORCED, poison=True) as session:
        for scale in (1, 2):
            given = {name: array * scale for name, array in constants.items()}
            np.testing.assert_array_equal(session.run({"v0": x, **given})["v2"], _expected(x, given))


def test_plans_of_two_shapes_share_packed_textures(device):
    graph, constants = _layers((6, 7, 5), width="w")
    with Session(graph, device, options=FORCED, poison=True) as session:
        for width in (9, 4, 9, 13):
            x = np.random.default_rng(width).integers(-3, 4, (1, 6, 5, width)).astype(np.float32)
            np.testing.assert_array_equal(session.run({"v0": x})["v2"], _expected(x, constants))
        _, timing = session.measure({"v0": x})
        assert timing.gpu_total_us > 0
