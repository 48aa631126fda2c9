"""Every route of conv2d_backward_data against the float64 reference: drawn calls, upstream's geometries, what no tap
reaches, epilogues around the scatter, values that are no numbers."""

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st
from route_kit import allowed, drawn_agree, of_f32
from route_kit import draw as inputs_of

import vkconv
from vkconv.check import check_call, expect, run_call
from vkconv.core import RouteError
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.ops import OPS
from vkconv.ops.conv.dgrad import volume
from vkconv.ops.conv.dgrad.reached import SOME
from vkconv.ops.core.calls import parse_call

pytestmark = pytest.mark.gpu
ROUTES = {route.name: route for route in of_f32("conv2d_backward_data")}
# Drawn more often as routes of conv_transpose2d, in test_conv_routes.py.
SHARED = ("phase_blocks", "phase_gemm", "phase", "col2im", "direct_gather")
# Those that take a negative padding on every side.
CROPPING = ("reached", "flipped_conv", "swap_1x1", "gather_scatter_conv", "fill_scatter_conv", "direct_gather")
# Winograd's products differ from those of the definition: not exact, and what is no number reaches a whole tile.
PLAIN = [name for name in ROUTES if name not in ("flipped_winograd", "by_images", "reached")]
EXACT_ACTIVATIONS = ("none", "relu", "clip,act_a=-2.5,act_b=7", "leaky_relu,act_a=0.25", "prelu", "prelu")
EXACT = {text.partition(",")[0] for text in EXACT_ACTIVATIONS}
ACTIVATIONS = (*EXACT_ACTIVATIONS, "hard_swish", "sigmoid", "tanh")


def call_of(text):
    return parse_call(f"conv2d_backward_data:{text}", OPS)


@st.composite
def gradients(draw, route):
    """A legal call that the route takes by its form: strides, dilations and padding of their own on every side, also
    negative, rows and columns that no window covers."""
    winograd = route == "flipped_winograd"
    groups = 1 if winograd else draw(st.integers(1, 3))
    in_group, out_group = draw(st.sampled_from((1, 2, 3, 5, 8, 19))), draw(st.sampled_from((1, 2, 3, 7, 17)))
    square = draw(st.sampled_from(((3, 3), (5, 5))))
    out_group = max(out_group, 8) if winograd and square == (5, 5) else out_group
    kernel = square if winograd else (1, 1) if route == "swap_1x1" else draw(st.tuples(*[st.integers(1, 4)] * 2))
    most = 4 if route == "reached" else 3
    stride = (1, 1) if route.startswith("flipped") else draw(st.tuples(*[st.integers(1, most)] * 2))
    dilation = (1, 1) if winograd else draw(st.tuples(*[st.integers(1, most)] * 2))
    least = -3 if route in CROPPING else 0
    padding = draw(st.tuples(*[st.integers(least, 4)] * 4))
    out = draw(st.tuples(st.integers(1, 9), st.sampled_from((1, 2, 5, 8, 17, 20))))
    rest = tuple(draw(st.integers(0, s - 1)) for s in stride)
    x = tuple(
        (out[i] - 1) * stride[i] + dilation[i] * (kernel[i] - 1) + 1 + rest[i] - padding[i] - padding[i + 2]
        for i in range(2)
    )
    assume(all(x[i] - max(-padding[i], 0) - max(-padding[i + 2], 0) >= 1 for i in range(2)))
    act = draw(st.sampled_from(ACTIVATIONS))
    fields = {
        "dy": (draw(st.integers(1, 3)), out_group * groups, *out),
        "w": (out_group * groups, in_group, *kernel),
        **({"b": (in_group * groups,)} if draw(st.booleans()) else {}),
        **({"slope": (in_group * groups,)} if act == "prelu" else {}),
        "x_shape": x,
        "s": stride,
        "p": padding,
        "d": dilation,
    }
    text = ",".join(f"{name}={'x'.join(map(str, values))}" for name, values in fields.items())
    call = call_of(f"{text},g={groups},act={act}")
    assume(route != "reached" or SOME.test(call, None))
    return call


@pytest.mark.parametrize("route", ROUTES)
def test_drawn_calls_agree_with_the_reference(route, device):
    def exact(call):
        return route in PLAIN and call["act"] in EXACT

    examples, least = (8, 5) if route in SHARED else (14, 9)
    drawn_agree(gradients(route), route, device, examples=examples, least=least, exact=exact)


# What upstream scatters in its tests (SwapStridedInsertSliceWithContraction, ConvertStridedInsertSliceToGeneric), as
# whole convolutions: dilated, 8x8 in 18x18, 10x10 in 22x22, 4x4 in 9x9, 3x3 by 3 in 10x10, 25x25 in 52x52 with 4 groups
# of 8.
UPSTREAM = (
    "dy=2x16x8x8,w=16x4x1x1,x_shape=16x16,s=2",
    "dy=2x16x8x8,w=16x4x3x3,x_shape=16x16,s=2,p=1",
    "dy=4x32x10x10,w=32x5x3x3,x_shape=20x20,s=2,p=1",
    "dy=1x1x4x4,w=1x1x3x3,x_shape=7x7,s=2,p=1",
    "dy=1x1x3x3,w=1x1x3x3,x_shape=8x8,s=3,p=1",
    "dy=1x32x25x25,w=32x8x3x3,x_shape=50x50,s=2,p=1,g=4",
)


@pytest.mark.parametrize("text", UPSTREAM)
def test_upstreams_geometries_by_every_route(text, device):
    call = call_of(text)
    arrays = inputs_of(call, "integers")
    (want,) = expect(call, arrays).outputs
    routes = allowed(call, device)
    assert {"fill_scatter_conv", "gather_scatter_conv", "direct_gather", "phase", "phase_gemm"} <= set(routes)
    for route in routes:
        ((dx,),) = run_call(call, arrays, device=device, route=route).outputs
        assert np.array_equal(dx, want), route


NOT_REACHED = (
    "dy=2x3x4x5,w=3x9x1x1,x_shape=12x19,s=3x4",
    "dy=1x5x4x3,w=5x4x2x1,x_shape=17x7,s=5x3,p=0x1x1x1",
    "dy=1x3x3x3,w=3x4x3x3,x_shape=13x9,s=4x2,d=2x2",
    "dy=1x6x4x4,w=6x2x1x1,x_shape=6x8,s=2,p=1x0,g=2",
)


@pytest.mark.parametrize("text", NOT_REACHED)
def test_what_no_tap_reaches_is_zero_to_the_bit(text, device):
    call = call_of(text)
    arrays = inputs_of(call, "normals")
    ones = {name: np.ones_like(array) for name, array in arrays.items()}
    reached = expect(call, ones).outputs[0] != 0
    assert 0.03 < reached.mean() < 0.9
    for route in allowed(call, device):
        first, again = (outputs[0] for outputs in run_call(call, arrays, device=device, route=route, replays=2).outputs)
        assert not first.view(np.uint32)[~reached].any(), route  # a 0 with a sign has a bit
        assert first[reached].all() and first.tobytes() == again.tobytes(), route


@pytest.mark.parametrize("act", ["none", "relu", "sigmoid", "leaky_relu,act_a=0.1", "prelu,slope=7"])
@pytest.mark.parametrize("bias", [False, True])
def test_an_epilogue_reaches_what_no_tap_does(act, bias, device):
    """Where 1x1 products are scattered, bias and an activation with f(0) other than 0 hold between them as well."""
    call = call_of(f"dy=2x5x4x6,w=5x7x1x1,{'b=7,' if bias else ''}x_shape=11x11,s=3x2,p=0x1x1x0,act={act}")
    arrays = inputs_of(call, "normals")
    for route in allowed(call, device):
        for params in [{"gather": 0}, {"gather": 1}] if route == "swap_1x1" else [{}]:
            if params and bool(params["gather"]) < (bias or act == "sigmoid"):
                continue  # zeros that are filled in have no epilogue
            ran, checked = check_call(call, arrays, device=device, route=route, params=params)
            assert ran.route == route and checked.ok, f"{route}: {checked.problem}"
            rows = ran.outputs[0][0][:, :, 1::3]  # between two rows of products
            assert (rows == 0).all() if not bias and act != "sigmoid" else (rows != 0).any(), route


@pytest.mark.parametrize("route", PLAIN)
def test_nan_and_infinity_go_where_ieee_says(route, device):
    one = {"swap_1x1": "dy=1x6x5x7,w=6x5x1x1,b=5,x_shape=10x14,s=2"}
    flipped = {"flipped_conv": "dy=1x6x5x7,w=6x5x3x3,b=5,x_shape=5x7,p=1"}
    call = call_of((one | flipped).get(route, "dy=1x6x5x7,w=6x5x3x3,b=5,x_shape=10x14,s=2,p=1"))
    arrays = inputs_of(call, "normals")
    arrays["dy"][0, 0, 1, 1], arrays["dy"][0, 3, 4, 6] = np.nan, np.inf
    arrays["dy"][0, 5, 4, 1], arrays["b"][-1] = -np.inf, np.nan
    ran, checked = check_call(call, arrays, device=device, route=route)
    assert ran.route == route and checked.ok, checked.problem
    dx = ran.outputs[0][0]
    assert np.isnan(dx[:, -1]).all() and not np.isnan(dx[:, 0]).all()


@pytest.mark.parametrize("route", ROUTES)
def test_a_batch_of_nothing_runs_nothing(route, device):
    call = call_of({"swap_1x1": "dy=0x4x6x6,w=4x2x1x1,x_shape=6x6"}.get(route, "dy=0x4x6x6,w=4x2x3x3,x_shape=6x6,p=1"))
    ran = run_call(call, inputs_of(call, "normals"), device=device, route=route)
    assert ran.route == "empty" and ran.outputs[0][0].shape == (0, 2, 6, 6)


def test_a_graph_with_it_takes_batches_in_turn(device):
    """x_shape as (h, w) leaves the batch open; w is flipped or packed once."""
    w = np.random.default_rng(1).integers(-3, 4, (5, 3, 3, 3)).astype(np.float32)
    node = Node(
        "g", "conv2d_backward_data", ("dy", "w"), ("dx",), {"x_shape": (12, 9), "stride": (2, 1), "padding": (1,)}
    )
    graph = Graph({"dy": TensorSpec(("n", 5, 6, 9))}, ("dx",), (node,), {"w": w})
    for route in ("fill_scatter_conv", "phase_blocks", "phase_gemm"):
        with vkconv.load(graph, device, routes={"conv2d_backward_data": route}) as session:
            for n in (1, 3, 1):
                call = call_of(f"dy={n}x5x6x9,w=5x3x3x3,x_shape=12x9,s=2x1,p=1")
                dy = inputs_of(call, "integers", seed=n)["dy"]
                want = expect(call, {"dy": dy, "w": w}).outputs[0]
                np.testing.assert_array_equal(session.run({"dy": dy})["dx"], want)


@pytest.mark.parametrize(
    ("text", "route", "message"),
    [
        ("dy=1x4x6x6,w=4x2x3x3,x_shape=12x12,s=2,p=1", "flipped_conv", "needs stride 1, and here it is 2x2"),
        ("dy=1x4x6x6,w=4x2x3x3,x_shape=12x12,s=2,p=1", "flipped_winograd", "needs stride 1, and here it is 2x2"),
        ("dy=1x4x6x6,w=4x2x7x7,x_shape=6x6,p=3", "flipped_winograd", "needs a 3x3 or 5x5 kernel, and here it is 7x7"),
        ("dy=1x4x6x6,w=4x2x5x5,x_shape=6x6,p=2", "flipped_winograd", "at least 8 input channels .* 4 channels"),
        ("dy=1x4x6x6,w=4x2x3x3,x_shape=12x12,s=2,p=1", "swap_1x1", "needs a 1x1 kernel, and here it is 3x3"),
        ("dy=1x4x3x3,w=4x2x1x1,x_shape=13x13,s=5", "phase_blocks", "at most 16 outputs in a block .* 25 outputs"),
        ("dy=1x4x3x3,w=4x2x8x8,x_shape=10x10", "phase_blocks", "at most 49 taps, and here it is 64 taps"),
        ("dy=1x4x3x3,w=4x2x1x3,x_shape=3x83,d=1x40", "phase", "from at most 40 input columns, and here it is 88"),
    ],
)
def test_a_forced_route_that_cannot_take_a_call_says_why(text, route, message, device):
    call = call_of(text)
    with pytest.raises(RouteError, match=message):
        run_call(call, inputs_of(call, "normals"), device=device, route=route)


@pytest.mark.parametrize(
    "params", [{"together": 0}, {"together": 1}, {"together": 0, "split_k": 3}, {"split_k": 32}], ids=str
)
def test_phases_apart_in_turn_or_in_parts(params, device):
    """Phases with and without taps, of different numbers of steps; parts of none."""
    call = call_of("dy=2x37x7x9,w=37x41x3x4,b=41,x_shape=24x19,s=4x2,p=1x2x3x0,act=relu")
    arrays = inputs_of(call, "integers")
    ran = run_call(call, arrays, device=device, route="phase_gemm", params=params, replays=2)
    (first,), (again,) = ran.outputs
    np.testing.assert_array_equal(first, expect(call, arrays).outputs[0])
    assert params.items() <= ran.params.items() and first.tobytes() == again.tobytes()


@pytest.mark.parametrize(("scratch", "parts"), [(20_000, 2), (9_000, 5), (3_300, 10), (2_500, 20)])
def test_products_of_three_dimensions_in_parts(scratch, parts, device, monkeypatch):
    """Several images at a time, groups of one image, and some channels of a group."""
    monkeypatch.setattr(volume, "SCRATCH_BYTES", scratch)
    call = parse_call("conv3d_backward_data:dy=5x6x3x3x3,w=6x5x2x3x1,x_shape=5x5x4,g=2,s=2x1x1,p=0x0x-1x1x0x0", OPS)
    arrays = inputs_of(call, "integers")
    ran = run_call(call, arrays, device=device, route="col2im", replays=2)
    (first,), (again,) = ran.outputs
    np.testing.assert_array_equal(first, expect(call, arrays).outputs[0])
    assert first.tobytes() == again.tobytes()
    assert len(list(volume.in_parts(call))) == parts
