"""gemm_reduce and conv_reduce on every route: drawn calls, exact integers, tails, what is not finite, in a graph."""

import numpy as np
import pytest
from graph_kit import f32, make_graph
from hypothesis import assume
from hypothesis import strategies as st
from route_kit import allowed, drawn_agree, of_f32, right
from route_kit import draw as inputs_of

from vkconv import functional
from vkconv.check import compare, expect, run_call
from vkconv.core import GraphError, RouteError, UsageError
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.ops.fused.conv_reduce_routes import convolution_of
from vkconv.plan.planner import Options
from vkconv.session import Session

pytestmark = pytest.mark.gpu
ROUTES = [(op, route.name) for op in ("gemm_reduce", "conv_reduce") for route in of_f32(op)]
EXACT_ACTIVATIONS = ("none", "relu", "relu6", "clip,act_a=-2.5,act_b=7", "leaky_relu,act_a=0.25")
ACTIVATIONS = (*EXACT_ACTIVATIONS, "hard_swish", "sigmoid", "gelu", "tanh")
AXES = ((2, 3), (2, 3), (3,), (1,), (0, 2, 3), (0, 1), (1, 2, 3), (0, 1, 2, 3), (2,))
FUNCTIONS = ("sum", "mean", "max", "min", "sum_square", "l2")


def text_of(op, fields):
    parts = (f"{k}={'x'.join(map(str, v)) if isinstance(v, tuple) else v}" for k, v in fields.items())
    return f"{op}:{','.join(parts)}"


@st.composite
def residuals(draw, full, outer):
    """One residual or two that broadcast to ``full``, or none; of batches, the first ``outer`` dimensions, only those
    repeat that lie at one end or around all others."""
    made = {}
    for name in ("residual", "residual2")[: draw(st.sampled_from((0, 1, 1, 2)))]:
        first, last = sorted(draw(st.tuples(st.integers(0, outer), st.integers(0, outer))))
        there = (*(first <= i < last for i in range(outer)), *draw(st.tuples(*[st.booleans()] * (len(full) - outer))))
        plain = draw(st.booleans())
        made[name] = tuple(n if plain or is_there else 1 for n, is_there in zip(full, there, strict=True))
    return made


@st.composite
def products(draw, joined=False):
    """With ``joined`` sums of batches that both operands have."""
    side = st.sampled_from((1, 2, 3, 5, 8, 17, 31, 33, 64, 65, 130))
    m, n, k = draw(side), draw(side), draw(st.sampled_from((1, 2, 7, 16, 33)))
    leads = (((), ()), ((2,), ()), ((), (3,)), ((2, 1), (3,)), ((3,), (3,)), ((2, 3, 2), (3, 1)))
    lead_a, lead_b = draw(st.sampled_from((((3,), (3,)), ((2, 5), (2, 5))) if joined else leads))
    ta, tb = draw(st.booleans()), draw(st.booleans())
    fields = {"a": (*lead_a, *((k, m) if ta else (m, k))), "b": (*lead_b, *((n, k) if tb else (k, n)))}
    if draw(st.booleans()):
        fields["bias"] = (n,)
    if not joined:
        lead = np.broadcast_shapes(lead_a, lead_b)
        fields |= draw(residuals((*lead, m, n), len(lead)))
    fields |= {"ta": int(ta), "tb": int(tb), "alpha": draw(st.sampled_from((1, -0.5))), "keep": draw(st.integers(0, 1))}
    axes = ("m", "n", "mn", "b", "bm", "bn", "bmn") if lead_a or lead_b else ("m", "n", "mn")
    axes, functions, activations = (("b",), ("sum", "mean"), ("none",)) if joined else (axes, FUNCTIONS, ACTIVATIONS)
    fields |= {"axis": draw(st.sampled_from(axes)), "op": draw(st.sampled_from(functions))}
    return parse_call(text_of("gemm_reduce", fields | {"act": draw(st.sampled_from(activations))}), OPS)


@st.composite
def convolutions(draw, in_parts=False):
    """With ``in_parts`` those of several images that a binding may begin with, reduced over them."""
    groups, size = draw(st.sampled_from((1, 1, 2, 3))), st.integers(1, 3)
    c_in, c_out = groups * draw(st.sampled_from((1, 3, 5, 9))), groups * draw(st.sampled_from((1, 4, 7, 17, 33)))
    images, axes = (1, 2, 5, 23), AXES
    if in_parts:
        c_in, c_out, images, axes = 4 * c_in, 4 * c_out, (2, 4, 5, 6, 12), ((0,), (0, 2), (0, 3), (0, 2, 3))
    kernel = draw(st.tuples(size, size))
    extent = draw(st.tuples(st.integers(1, 9), st.sampled_from((1, 2, 5, 8, 17, 33))))
    fields = {"x": (draw(st.sampled_from(images)), c_in, *extent), "w": (c_out, c_in // groups, *kernel)}
    act = draw(st.sampled_from((*ACTIVATIONS, "prelu")))
    if draw(st.booleans()):
        fields["b"] = (c_out,)
    if act == "prelu":
        fields["slope"] = (c_out,)
    fields |= {"s": draw(st.tuples(size, size)), "p": draw(st.tuples(*[st.integers(0, 2)] * 4)), "g": groups}
    fields["axes"] = draw(st.sampled_from(axes))
    fields |= {"d": draw(st.tuples(size, size)), "op": draw(st.sampled_from(FUNCTIONS)), "act": act}
    fields["keep"] = draw(st.integers(0, 1))
    try:
        call = parse_call(text_of("conv_reduce", fields), OPS)
    except GraphError as error:
        assert "the output would be empty" in str(error)
        assume(False)
    full = convolution_of(call).shape("y")
    if not in_parts:
        fields |= draw(residuals(full, 1))
    elif draw(st.booleans()):
        fields["residual"] = full
    return parse_call(text_of("conv_reduce", fields), OPS)


@st.composite
def of_several_outputs(draw, calls):
    """Calls of two reductions, or with the product as an output, or both."""
    call = draw(calls)
    also = draw(st.sampled_from(("", *(name for name in FUNCTIONS if name != call["op"]))))
    wanted = {"also": also, "product": not also or draw(st.booleans())}
    return OPS[call.op].call(call.operands, {**call.attrs, **wanted})


def is_exact(call):
    return call["op"] not in ("mean", "l2", "sum_square") and call["act"] in (
        "prelu",
        *(text.partition(",")[0] for text in EXACT_ACTIVATIONS),
    )


@pytest.mark.parametrize(("op", "route"), ROUTES)
def test_drawn_calls_agree_with_the_reference(op, route, device):
    drawn = products(route == "joined") if op == "gemm_reduce" else convolutions(route == "in_parts")
    drawn_agree(drawn, route, device, examples=12, least=8, exact=is_exact)


@pytest.mark.parametrize("route", ["fused_partials", "fused_lanes", "unfused"])
@pytest.mark.parametrize("op", ["gemm_reduce", "conv_reduce"])
def test_drawn_calls_of_several_outputs_agree_with_the_reference(op, route, device):
    drawn = of_several_outputs(products() if op == "gemm_reduce" else convolutions())
    drawn_agree(drawn, route, device, examples=6, least=4, exact=is_exact)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("op", FUNCTIONS)
def test_some_images_after_the_others_make_the_same_as_all_at_once(op, dtype, device):
    """A mean of means and a norm of norms; what part begins with the next images starts as NaN bits."""
    call = parse_call(
        f"conv_reduce:x=6x8x7x6,w=12x4x3x3,b=12,g=2,p=1,residual=6x12x7x6,act=relu,axes=0,op={op},dtype={dtype}", OPS
    )
    arrays = inputs_of(call, "normals")
    for images in (1, 2, 3):
        params = {"images": images}
        ran = run_call(call, arrays, device=device, route="in_parts", params=params, replays=2)
        (first,), (again,) = ran.outputs
        checked = compare(call, [first], expect(call, arrays))
        assert checked.ok and params.items() <= ran.params.items(), checked.problem
        assert first.tobytes() == again.tobytes()


@pytest.mark.parametrize(
    "text",
    [
        "gemm_reduce:a=67x5,b=5x131,bias=131,op=max,also=sum,axis=n,product=1",
        "conv_reduce:x=3x5x9x15,w=35x5x3x3,b=35,op=min,also=max,product=1",
    ],
)
def test_every_output_is_what_a_call_of_its_own_makes(text, device):
    """To the bit, where the tiles are the same: the second reduction and the product are no others."""
    call = parse_call(text, OPS)
    arrays = inputs_of(call, "integers")
    for route in ("fused_partials", "fused_lanes", "unfused"):
        (every,) = run_call(call, arrays, device=device, route=route).outputs
        assert len(every) == 3
        for got, want in zip(every, expect(call, arrays).outputs, strict=True):
            np.testing.assert_array_equal(got, want, route)
        for op, got in zip((call["op"], call["also"]), every, strict=False):
            one = OPS[call.op].call(call.operands, {**call.attrs, "op": op, "also": "", "product": False})
            np.testing.assert_array_equal(run_call(one, arrays, device=device, route=route).outputs[0][0], got, route)


def test_what_makes_several_outputs_is_neither_atomic_nor_in_stages(device):
    for text in ("gemm_reduce:a=9x5,b=5x7,product=1", "gemm_reduce:a=9x5,b=5x7,also=max,axis=mn"):
        call = parse_call(text, OPS)
        assert not {"fused_atomic", "fused_stages"} & set(allowed(call, device))


# Tiles that end beyond the matrix on both sides, several of them along what is reduced.
TAILS = (
    "gemm_reduce:a=67x5,b=5x131,bias=131,op={},axis={}",
    "gemm_reduce:a=2x129x3,b=3x33,op={},axis={}",
    "conv_reduce:x=3x5x9x15,w=35x5x3x3,b=35,op={}",
    "conv_reduce:x=40x3x1x5,w=5x3x1x1,b=5,op={}",
    "conv_reduce:x=3x5x9x15,w=35x5x3x3,b=35,axes=1,op={}",
    "conv_reduce:x=3x6x9x15,w=70x3x3x3,b=70,g=2,axes=1,op={}",
    "conv_reduce:x=2x5x3x69,w=35x5x3x3,b=35,p=1,axes=3,op={}",
    "conv_reduce:x=3x5x9x15,w=35x5x3x3,b=35,axes=0x2x3,op={}",
    "conv_reduce:x=2x5x69x3,w=35x5x3x3,b=35,p=1,axes=2,op={}",
)


def calls_of(text, *functions):
    axes = ("m", "n", "mn") if text.startswith("gemm") else "m"
    return [parse_call(text.format(op, axis), OPS) for op in functions for axis in axes]


@pytest.mark.parametrize("text", TAILS)
def test_what_lies_beyond_a_matrix_wins_nothing(text, device):
    """All results are negative and their bias is positive: zeros, and bias and activation of nothing, would win a
    maximum; the other way round for a minimum."""
    for call in calls_of(text, "max", "min"):
        sign = np.float32(1 if call["op"] == "max" else -1)
        arrays = {name: np.abs(array) + 1 for name, array in inputs_of(call, "integers").items()}
        first = "a" if call.op == "gemm_reduce" else "x"
        arrays[first] = -8 * sign * arrays[first]
        for bias in {"bias", "b"} & {name for name, spec in call.operands.items() if spec and len(spec.dims) == 1}:
            arrays[bias] = sign * arrays[bias]
        (want,) = expect(call, arrays).outputs
        assert (want * sign < 0).all()
        for route in allowed(call, device):
            ((y,),) = run_call(call, arrays, device=device, route=route).outputs
            np.testing.assert_array_equal(y, want, f"{format_call(call, OPS)} {route}")


@pytest.mark.parametrize("text", TAILS)
def test_what_is_not_finite_goes_where_ieee_says(text, device):
    for call in calls_of(text, "max", "min", "sum"):
        arrays = inputs_of(call, "normals")
        first, second = ("a", "b") if call.op == "gemm_reduce" else ("x", "w")
        arrays[second] = np.abs(arrays[second]) + np.float32(0.1)
        flat = arrays[first].reshape(-1, arrays[first].shape[-1])
        flat[1, 0], flat[-1, -1], flat[2, 1] = np.nan, -np.inf, np.inf
        (want,) = expect(call, arrays).outputs
        assert np.isnan(want).any()
        for route in allowed(call, device):
            right(call, arrays, route, device)


@pytest.mark.parametrize("op", ["max", "min"])
def test_rows_of_nothing_but_infinities(op, device):
    call = parse_call(f"gemm_reduce:a=37x3,b=3x70,op={op},axis=n", OPS)
    arrays = {"a": np.ones((37, 3), np.float32), "b": np.ones((3, 70), np.float32)}
    arrays["a"][::2] = -np.inf
    arrays["a"][5] = np.inf
    (want,) = expect(call, arrays).outputs
    for route in allowed(call, device):
        ((y,),) = run_call(call, arrays, device=device, route=route).outputs
        np.testing.assert_array_equal(y, want, route)


def test_atomic_extremes_repeat_and_keep_the_order_of_floats(device):
    """Values of both signs and many sizes meet at each output, from many workgroups at once."""
    for op in ("max", "min"):
        call = parse_call(f"gemm_reduce:a=33x1,b=1x2053,op={op}", OPS)
        rng = np.random.default_rng(3)
        arrays = {
            "a": rng.standard_normal((33, 1)),
            "b": rng.standard_normal((1, 2053)) * 10.0 ** rng.integers(-30, 30),
        }
        arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
        ran = run_call(call, arrays, device=device, route="fused_atomic", replays=3)
        one = run_call(call, arrays, device=device, route="unfused").outputs[0][0]
        assert all(out[0].tobytes() == one.tobytes() for out in ran.outputs)


@pytest.mark.parametrize("op", ["gemm_reduce", "conv_reduce"])
def test_a_batch_of_nothing_runs_nothing(op, device):
    text = {"gemm_reduce": "gemm_reduce:a=0x4x6,b=6x3", "conv_reduce": "conv_reduce:x=0x4x6x6,w=4x2x3x3,g=2,b=4"}[op]
    call = parse_call(text, OPS)
    for route in OPS[op].routes:
        ran = run_call(call, inputs_of(call, "normals"), device=device, route=route.name)
        assert ran.route == "empty" and ran.outputs[0][0].shape == call.shape("y")


def test_a_sum_over_no_products_is_the_activation_of_the_bias(device):
    call = parse_call("gemm_reduce:a=5x0,b=0x7,bias=7,act=sigmoid,axis=n", OPS)
    arrays = inputs_of(call, "normals")
    for route in allowed(call, device):
        right(call, arrays, route, device)


def test_a_network_ends_in_one_kernel(device):
    """Convolution, batch norm, activation and global average pooling, as the end of a classifier has them."""
    x, constants = f32(2, 9, 6, 7, seed=5), {"w": f32(20, 9, 1, 1), "b": f32(20), "v": f32(20, 11)}
    graph = make_graph(
        {"x": x.shape},
        [
            ("conv2d", "x w b", "c"),
            ("relu6", "c", "r"),
            ("reduce", "r", "g", {"op": "mean", "axes": (2, 3), "keepdims": False}),
            ("matmul", "g v", "y"),
        ],
        "y",
        constants,
    )
    with Session(graph, device) as session, Session(graph, device, options=Options(passes=False)) as plain:
        assert [node.call.op for node in session.plan.nodes] == ["conv_reduce", "matmul"]
        np.testing.assert_allclose(session.run({"x": x})["y"], plain.run({"x": x})["y"], rtol=1e-5, atol=1e-5)


def test_as_functions(device):
    a, b, bias = f32(3, 5, 7), f32(7, 9, seed=2), f32(9, seed=3)
    p = np.maximum(a.astype(np.float64) @ b + bias, 0)
    for route in (None, "fused_partials", "fused_atomic", "unfused"):
        kwargs = {"activation": "relu", "route": route, "device": device}
        np.testing.assert_allclose(functional.gemm_reduce(a, b, bias, **kwargs), p.sum(-1), rtol=1e-5, atol=1e-5)
        y = functional.gemm_reduce(a, b, bias, op="max", axis="m", keepdims=True, **kwargs)
        np.testing.assert_allclose(y, p.max(1, keepdims=True), rtol=1e-5, atol=1e-5)
    x, w = f32(2, 4, 6, 5), f32(6, 2, 3, 3, seed=2)
    whole = functional.conv2d(x, w, padding=1, groups=2, device=device)
    y = functional.conv_reduce(x, w, padding=1, groups=2, device=device)
    np.testing.assert_allclose(y, whole.mean((2, 3)), rtol=1e-5, atol=1e-5)
    last = np.moveaxis(x, 1, -1)
    y = functional.conv_reduce(last, w, op="max", keepdims=True, padding=1, groups=2, layout="NHWC", device=device)
    np.testing.assert_allclose(y, np.moveaxis(whole.max((2, 3), keepdims=True), 1, -1), rtol=1e-5, atol=1e-5)
    y = functional.conv_reduce(x, w, op="max", axes=(0, 1), padding=1, groups=2, device=device)
    np.testing.assert_allclose(y, whole.max((0, 1)), rtol=1e-5, atol=1e-5)
    y = functional.gemm_reduce(a, b, bias, axis="bmn", activation="relu", device=device)
    np.testing.assert_allclose(y, p.sum(), rtol=1e-5)
    functional.clear_cache()


def test_functions_of_several_results_and_a_residual(device):
    a, b, added = f32(3, 5, 7), f32(7, 9, seed=2), f32(3, 5, 9, seed=3)
    p = np.maximum(a.astype(np.float64) @ b + added, 0)
    kwargs = {"residual": added, "activation": "relu", "device": device}
    np.testing.assert_allclose(functional.gemm_reduce(a, b, **kwargs), p.sum(-1), rtol=1e-5, atol=1e-5)
    several = functional.gemm_reduce(a, b, axis="m", also="max", product=True, **kwargs)
    for made, want in zip(several, (p.sum(1), p.max(1), p), strict=True):
        np.testing.assert_allclose(made, want, rtol=1e-5, atol=1e-5)
    row, column = f32(9, seed=4), f32(3, 5, 1, seed=5)
    p = np.maximum(a.astype(np.float64) @ b + row + column, 0)
    kwargs |= {"residual": row, "residual2": column}
    for route in ("fused_partials", "fused_lanes", "fused_atomic", "unfused"):
        np.testing.assert_allclose(functional.gemm_reduce(a, b, route=route, **kwargs), p.sum(-1), rtol=1e-5, atol=1e-5)
    x, w, added = f32(2, 4, 6, 5), f32(6, 4, 3, 3, seed=2), f32(2, 6, 6, 5, seed=3)
    p = functional.conv2d(x, w, padding=1, device=device) + added
    mean, most = functional.conv_reduce(x, w, residual=added, also="max", padding=1, device=device)
    np.testing.assert_allclose(mean, p.mean((2, 3)), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(most, p.max((2, 3)), rtol=1e-5, atol=1e-5)
    by_channel = f32(1, 6, 1, 1, seed=6)
    kwargs = {"residual": added, "residual2": by_channel, "padding": 1, "device": device}
    mean = functional.conv_reduce(x, w, **kwargs)
    np.testing.assert_allclose(mean, (p + by_channel).mean((2, 3)), rtol=1e-5, atol=1e-5)
    last = [np.moveaxis(array, 1, -1) for array in (x, added)]
    mean, made = functional.conv_reduce(
        last[0], w, residual=last[1], product=True, padding=1, layout="NHWC", device=device
    )
    np.testing.assert_allclose(made, np.moveaxis(p, 1, -1), rtol=1e-5, atol=1e-5)
    functional.clear_cache()


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"op": "prod"}, GraphError, "no op='prod'; one of sum, mean, max, min"),
        ({"axis": "k"}, GraphError, "axis is 'k'; it is m"),
        ({"axis": "bn"}, GraphError, "axis is bn, and the product, .*, has no batches"),
        ({"axis": 1}, UsageError, "axis is 1; it is a name"),
        ({"op": None}, UsageError, "op is None; it is a name"),
        ({"also": 3}, UsageError, "also is 3; it is a name"),
        ({"also": "sum"}, GraphError, "also"),
        ({"residual": np.zeros((5, 2), np.float32)}, GraphError, "residual is 5x2.*aligned at the right"),
        ({"residual": np.zeros((2, 5, 3), np.float32)}, GraphError, "residual is 2x5x3.*aligned at the right"),
        ({"residual2": np.zeros((5, 3), np.float32)}, GraphError, "a residual2 and no residual"),
        (
            {"a": np.zeros((2, 3, 2, 5, 7), np.float32), "residual": np.zeros((2, 1, 2, 1, 3), np.float32)},
            GraphError,
            "repeats over batches between others",
        ),
        ({"route": "fused_atomics"}, UsageError, "did you mean 'fused_atomic'"),
        ({"a": np.zeros((0, 7), np.float32), "axis": "m"}, GraphError, "there is nothing along m to reduce"),
        ({"a": np.zeros((5, 6), np.float32)}, GraphError, "sums over 6 elements, but b .* has 7"),
        (
            {"a": np.zeros((5, 7), np.float16), "b": np.zeros((7, 3), np.float16), "route": "fused_atomic"},
            RouteError,
            "no 16-bit floats",
        ),
    ],
)
def test_what_a_function_refuses(given, error, said, device):
    arguments = {"a": np.zeros((5, 7), np.float32), "b": np.zeros((7, 3), np.float32), **given}
    with pytest.raises(error, match=said):
        functional.gemm_reduce(arguments.pop("a"), arguments.pop("b"), device=device, **arguments)
