"""A product or convolution and the reduction of its result as one node: what becomes one, what stays two and why."""

import numpy as np
import pytest
from graph_kit import draw, evaluate, f32, make_bound, make_graph
from pass_parts import CONSTANTS

from vkconv.core import DType
from vkconv.device import load_device
from vkconv.graph import TensorSpec
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.explain import explain_plan, explain_plan_data
from vkconv.plan.planner import Options, plan, rewritten
from vkconv.route import Candidate, choose

LAVAPIPE, H200 = load_device("lavapipe"), load_device("h200")
X, A, BATCHED = {"x": (2, 3, 5, 4)}, {"a": (5, 3)}, {"a": (2, 5, 3)}
CONV = ("conv2d", "x w b", "c", {"padding": (1,), "stride": (2, 2)})
MATMUL = ("matmul", "a wide columns", "m")
MEAN = {"op": "mean", "axes": (2, 3)}
LARGE = {"w_1x1": f32(256, 64, 1, 1), "w_3x3": f32(64, 64, 3, 3), "k": f32(256, 192), "thin": f32(256, 8)}


def rows(op, axis=-1, keepdims=True):
    return ("reduce", "m", "y", {"op": op, "axes": (axis,), "keepdims": keepdims})


FUSED = {
    "mean of a conv2d": (X, [CONV, ("reduce", "c", "y", MEAN)], "conv_reduce"),
    "mean without its axes": (X, [CONV, ("reduce", "c", "y", {**MEAN, "keepdims": False})], "conv_reduce"),
    "maximum, activation between": (
        X,
        [CONV, ("relu", "c", "r"), ("reduce", "r", "y", {"op": "max", "axes": (-1, -2)})],
        "conv_reduce",
    ),
    "prelu between": (X, [CONV, ("prelu", "c per_channel", "r"), ("reduce", "r", "y", MEAN)], "conv_reduce"),
    "batch norm and activation between": (
        X,
        [
            CONV,
            ("batch_norm", "c scale shift mean var", "n", {"eps": 1e-3}),
            ("hard_swish", "n", "h"),
            ("reduce", "h", "y", {"op": "min", "axes": (2, 3)}),
        ],
        "conv_reduce",
    ),
    "a pool as large as the image": (X, [CONV, ("pool2d", "c", "y", {"kind": "avg", "kernel": (3, 2)})], "conv_reduce"),
    "its maximum": (X, [CONV, ("pool2d", "c", "y", {"kind": "max", "kernel": (3, 2)})], "conv_reduce"),
    "sum of rows": (A, [MATMUL, rows("sum")], "gemm_reduce"),
    "maximum of columns": (A, [MATMUL, rows("max", 0)], "gemm_reduce"),
    # mlir/test/fusion/pr-e2e/reductions of rocMLIR: the sum of a product and another tensor.
    "an addition of another tensor": (
        {**A, "z": (5, 6)},
        [("matmul", "a wide", "p"), ("add", "p z", "m"), rows("sum")],
        "gemm_reduce",
    ),
    "an addition and an activation, by columns": (
        {**A, "z": (5, 6)},
        [("matmul", "a wide columns", "p"), ("add", "z p", "s"), ("relu", "s", "m"), rows("max", 0)],
        "gemm_reduce",
    ),
    "an addend for all batches": (
        {**BATCHED, "z": (5, 6)},
        [("matmul", "a wide", "p"), ("add", "p z", "m"), rows("sum")],
        "gemm_reduce",
    ),
    "an addend of a row of all batches, and an activation": (
        {**BATCHED, "z": (1, 6)},
        [("matmul", "a wide columns", "p"), ("add", "z p", "s"), ("relu", "s", "m"), rows("max", 1)],
        "gemm_reduce",
    ),
    "a column and another tensor": (
        {**A, "u": (5, 1), "v": (5, 6)},
        [("matmul", "a wide", "p"), ("add", "p u", "s"), ("add", "s v", "m"), rows("sum")],
        "gemm_reduce",
    ),
    "two tensors": (
        {**A, "u": (5, 6), "v": (5, 6)},
        [("matmul", "a wide", "p"), ("add", "p u", "s"), ("add", "s v", "m"), rows("sum", 0)],
        "gemm_reduce",
    ),
    "a vector that is no constant, and a number": (
        {**A, "z": (6,)},
        [("matmul", "a wide", "p"), ("add", "p z", "s"), ("sub", "s two", "t"), ("tanh", "t", "m"), rows("max")],
        "gemm_reduce",
    ),
    "one to each channel of a conv2d": (
        {**X, "z": (4, 1, 1)},
        [CONV, ("add", "c z", "s"), ("leaky_relu", "s", "r", {"a": 0.2}), ("reduce", "r", "y", MEAN)],
        "conv_reduce",
    ),
    "one to each column of a conv2d": (X, [CONV, ("add", "c along", "s"), ("reduce", "s", "y", MEAN)], "conv_reduce"),
    "a map and another tensor to a conv2d": (
        {**X, "z": (2, 4, 3, 2), "v": (2, 1, 3, 2)},
        [CONV, ("add", "c z", "s"), ("add", "v s", "t"), ("hard_swish", "t", "r"), ("reduce", "r", "y", MEAN)],
        "conv_reduce",
    ),
    "l2 of rows": (A, [MATMUL, rows("l2")], "gemm_reduce"),
    "squares of columns": (A, [MATMUL, rows("sum_square", 0)], "gemm_reduce"),
    "an addition to a conv2d and an activation": (
        {**X, "z": (2, 4, 3, 2)},
        [CONV, ("add", "c z", "s"), ("relu", "s", "r"), ("reduce", "r", "y", MEAN)],
        "conv_reduce",
    ),
    "l2 of a conv2d": (X, [CONV, ("reduce", "c", "y", {**MEAN, "op": "l2"})], "conv_reduce"),
    "images and pixels": (X, [CONV, ("reduce", "c", "y", {"op": "mean", "axes": (0, 2, 3)})], "conv_reduce"),
    "everything of a conv2d": (X, [CONV, ("reduce", "c", "y", {"op": "l2", "axes": ()})], "conv_reduce"),
    "both axes of a product": (A, [MATMUL, ("reduce", "m", "y", {"op": "sum", "axes": (0, 1)})], "gemm_reduce"),
    "batches and rows": (BATCHED, [MATMUL, ("reduce", "m", "y", {"op": "max", "axes": (0, 2)})], "gemm_reduce"),
    "in batches": (BATCHED, [MATMUL, rows("min", 1, False)], "gemm_reduce"),
    "the batches of both operands": (
        {"a": (4, 5, 3), "other": (4, 3, 6)},
        [("matmul", "a other", "m"), rows("mean", 0)],
        "gemm_reduce",
    ),
    "a bias that an addition brings, and an activation": (
        A,
        [("matmul", "a wide", "p"), ("add", "p columns", "s"), ("tanh", "s", "m"), rows("mean", 1, False)],
        "gemm_reduce",
    ),
}
KEPT = {
    "the result is an output": (X, [CONV, ("reduce", "c", "y", MEAN)], "c y", "is an output of the graph too"),
    "it is read twice": (A, [MATMUL, rows("sum"), ("tanh", "m", "z")], "y z", "has other readers"),
    "another axis": (
        X,
        [CONV, ("reduce", "c", "y", {"op": "sum", "axes": (1,)})],
        "y",
        "fused_lanes needs a reduction over height and width, and here it is channels",
    ),
    "height alone": (
        X,
        [CONV, ("reduce", "c", "y", {"op": "sum", "axes": (2,)})],
        "y",
        "fused_lanes needs a reduction over height and width, and here it is height",
    ),
    "images alone": (
        X,
        [CONV, ("reduce", "c", "y", {"op": "sum", "axes": (0,)})],
        "y",
        "in_parts needs a result of the convolution that is larger than the device's budget of scratch, and here it is",
    ),
    "over the batches": (BATCHED, [MATMUL, rows("sum", 0)], "y", "along rows or columns alone, and here it is b"),
    "the largest over the batches": (
        {"a": (4, 5, 3), "other": (4, 3, 6)},
        [("matmul", "a other", "m"), rows("max", 0)],
        "y",
        "joined needs one sum or mean over batches alone",
    ),
    "one of two batch dimensions": (
        {"a": (2, 3, 5, 3)},
        [MATMUL, rows("sum", 0)],
        "y",
        "only all of its batches can be reduced with it, and here it is 0",
    ),
    "three additions": (
        {**A, "u": (5, 6), "v": (5, 1), "z": (6,)},
        [("matmul", "a wide", "p"), ("add", "p u", "s"), ("add", "s v", "t"), ("add", "t z", "m"), rows("sum")],
        "y",
        "it adds 2 values to what it makes, and here are 3",
    ),
    "an addition that repeats the product": (
        {**A, "z": (2, 5, 6)},
        [("matmul", "a wide", "p"), ("add", "p z", "m"), rows("sum")],
        "y",
        "other readers or another shape",
    ),
    "an addition that others read": (
        {**A, "z": (5, 1)},
        [("matmul", "a wide", "p"), ("add", "p z", "m"), rows("sum")],
        "y m",
        "is an output of the graph too",
    ),
    "a product that is not added": (
        {**A, "z": (5, 1)},
        [("matmul", "a wide", "p"), ("mul", "p z", "m"), rows("sum")],
        "y",
        "'mul_m' lies between them, which it does not apply",
    ),
    "what is taken from the product": (
        {**A, "z": (5, 1)},
        [("matmul", "a wide", "p"), ("sub", "p z", "m"), rows("sum")],
        "y",
        "'sub_m' lies between them, which it does not apply",
    ),
    "an addition behind an activation": (
        {**A, "z": (5, 1)},
        [("matmul", "a wide", "p"), ("relu", "p", "r"), ("add", "r z", "m"), rows("sum")],
        "y",
        "lies between them, which it does not apply",
    ),
    "batches between others": (
        {"a": (2, 3, 2, 5, 3), "z": (2, 1, 2, 1, 1)},
        [("matmul", "a wide", "p"), ("add", "p z", "m"), rows("sum")],
        "y",
        "repeats over batches between others",
    ),
    "two activations": (
        A,
        [MATMUL, ("relu", "m", "r"), ("tanh", "r", "t"), ("reduce", "t", "y", {"op": "sum", "axes": (1,)})],
        "y",
        "'tanh_t' lies between",
    ),
}
SILENT = {
    "another function": (A, [MATMUL, rows("prod")], "y"),
    "nothing before it": (A, [("reduce", "a", "y", {"op": "sum", "axes": (1,)})], "y"),
    "a pool of another kind": (X, [CONV, ("pool2d", "c", "y", {"kind": "lp", "kernel": (3, 2)})], "y"),
    "a pool with padding": (
        X,
        [CONV, ("pool2d", "c", "y", {"kind": "max", "kernel": (3, 2), "padding": (1, 0)})],
        "y",
    ),
    "a smaller pool": (X, [CONV, ("pool2d", "c", "y", {"kind": "max", "kernel": (2, 2)})], "y"),
}


def bound_of(inputs, nodes, outputs="y"):
    return make_bound(inputs, nodes, outputs, {**CONSTANTS, "along": f32(2)})


def assert_same(before, after):
    arrays = draw(before.inputs)
    for want, got in zip(evaluate(before, arrays), evaluate(after, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", FUSED.values(), ids=FUSED)
def test_both_become_one_that_computes_the_same(case):
    inputs, nodes, op = case
    before = bound_of(inputs, nodes)
    after, remarks = rewritten(before, LAVAPIPE, Options())
    *before_it, node = after.nodes
    assert {each.call.op for each in before_it} <= {"reshape"}
    assert node.call.op == op and node.name in ("conv2d_c", "matmul_m", "matmul_p")
    assert list(remarks) == [node.name] and " part of it" in remarks[node.name]
    assert after.outputs == before.outputs and after.specs["y"] == before.specs["y"]
    assert_same(before, after)


PAIR = [("reduce", "m", "u", {"op": "sum_square", "axes": (1,)}), ("reduce", "m", "v", {"op": "mean", "axes": (1,)})]
# Graph, outputs, the node's outputs by name, and how many nodes are left.
SEVERAL = {
    "the product is an output": (A, [MATMUL, rows("sum")], "m y", {"y": "y", "product": "m"}, 1),
    "the product is gated by its mean": (
        X,
        [CONV, ("reduce", "c", "g", MEAN), ("sigmoid", "g", "s"), ("mul", "c s", "y")],
        "y",
        {"y": "g", "product": "c"},
        3,
    ),
    "mean and squares": (A, [MATMUL, *PAIR], "v u", {"y": "u", "also": "v"}, 1),
    "both, and the product": (
        A,
        [MATMUL, ("tanh", "m", "t"), *PAIR],
        "t u v",
        {"y": "u", "also": "v", "product": "m"},
        2,
    ),
    "another axis stays": (
        A,
        [MATMUL, rows("sum"), ("reduce", "m", "z", {"op": "max", "axes": (0,)})],
        "y z",
        {"y": "y", "product": "m"},
        2,
    ),
    "three of them": (
        A,
        [MATMUL, *PAIR, ("reduce", "m", "z", {"op": "max", "axes": (1,)})],
        "u v z",
        {"y": "u", "also": "v", "product": "m"},
        2,
    ),
}


@pytest.mark.parametrize("case", SEVERAL.values(), ids=SEVERAL)
def test_two_reductions_and_a_wanted_product_are_one_where_that_is_asked_for(case):
    inputs, nodes, outputs, writes, left = case
    before = bound_of(inputs, nodes, outputs)
    routes = dict.fromkeys(("gemm_reduce", "conv_reduce"), "fused_lanes")
    after, remarks = rewritten(before, LAVAPIPE, Options(routes=routes))
    one = next(node for node in after.nodes if node.call.op in routes)
    assert one.writes == writes and list(one.call.outputs) == list(writes) and len(after.nodes) == left
    assert ("are part of it" if "also" in writes else "is part of it") in remarks[one.name]
    assert ("and its product is kept" in remarks[one.name]) is ("product" in writes)
    assert_same(before, after)


def test_two_reductions_stay_apart_where_nobody_timed_them():
    before = bound_of(A, [MATMUL, *PAIR], "u v")
    after, remarks = rewritten(before, LAVAPIPE, Options())
    assert after.nodes == before.nodes
    assert len(remarks) == 2 and all("needs one reduction alone, or a device" in remark for remark in remarks.values())


@pytest.mark.parametrize("case", KEPT.values(), ids=KEPT)
def test_what_cannot_be_one_stays_two_and_says_why(case):
    *graph, why = case
    before = bound_of(*graph)
    after, remarks = rewritten(before, LAVAPIPE, Options())
    assert not {"gemm_reduce", "conv_reduce"} & {node.call.op for node in after.nodes}
    (remark,) = remarks.values()
    assert "not in one with" in remark and why in remark
    assert_same(before, after)


@pytest.mark.parametrize("case", SILENT.values(), ids=SILENT)
def test_what_only_looks_alike_is_left_without_a_word(case):
    after, remarks = rewritten(bound_of(*case), LAVAPIPE, Options())
    assert not remarks and not {"gemm_reduce", "conv_reduce"} & {node.call.op for node in after.nodes}


# Inner routes that no shipped device takes by rule: GPUs have a faster one, as CPUs do; one is to be asked for.
NEVER = {
    "conv_reduce": {
        *(
            f"conv2d/{route}"
            for route in ("pointwise", "pointwise_vec4", "direct_tile", "block_diagonal", "space_to_depth")
        ),
        *(f"conv2d/texture_{route}" for route in ("depthwise", "pointwise", "tile")),
        "reduce/split",
    },
    "gemm_reduce": {"reduce/split"},
}
OF_16_BITS = {"conv2d/cooperative", "conv2d/cooperative_fragment", "matmul/cooperative"}


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", NEVER)
def test_cases_reach_every_inner_route_that_is_chosen(name, dtype):
    """Winograd and patches are chosen in f32 alone, planes in shared memory in 16 bits."""
    unfused, taken, there = next(route for route in OPS[name].routes if route.name == "unfused"), set(), set()
    for text in OPS[name].cases:
        call = parse_call(f"{text},dtype={dtype}", OPS)
        for device in (LAVAPIPE, H200, load_device("mali-g715"), load_device("raspberry-pi-4")):
            for inner, sub in unfused.inner(call, device, {}).items():
                inner = inner.removesuffix("_also")  # the second reduction has the routes of the first
                there |= {f"{inner}/{route.name}" for route in sub.routes}
                taken.add(f"{inner}/{choose(sub.routes, sub.call, device).route.name}")
    planes = {"conv2d/depthwise_planes"}
    never = NEVER[name] | (OF_16_BITS | planes if dtype == "f32" else {"conv2d/winograd", "conv2d/shared_patch"})
    assert taken == there - never


def planned(nodes, shape, device, options=None, reads="x"):
    graph = make_graph({reads: shape}, nodes, "y", LARGE)
    return plan(graph, device, options or Options()).plan


@pytest.mark.parametrize(
    ("shape", "conv", "device", "why"),
    [
        ((8, 64, 56, 56), ("conv2d", "x w_1x1", "c"), H200, None),
        ((1, 64, 56, 56), ("conv2d", "x w_3x3", "c", {"padding": (1,)}), LAVAPIPE, "and here it is winograd"),
        ((8, 64, 56, 56), ("conv2d", "x w_3x3", "c", {"padding": (1,)}), H200, "and here it is winograd"),
        ((1, 64, 14, 14), ("conv2d", "x w_1x1", "c", {"padding": (1,)}), LAVAPIPE, None),
    ],
)
def test_a_convolution_is_fused_where_its_own_route_has_the_tiles(shape, conv, device, why):
    nodes = planned([conv, ("reduce", "c", "y", MEAN)], shape, device).nodes
    assert (len(nodes) == 1) is (why is None)
    if why:
        assert why in nodes[-1].remark
    else:
        assert nodes[0].route.startswith("fused")


@pytest.mark.parametrize(
    ("axes", "shape", "route"),
    [
        ((1,), (8, 64, 56, 56), "fused_partials"),
        ((3,), (8, 64, 56, 56), "fused_partials"),
        ((3,), (8, 64, 7, 7), None),
        ((0, 2, 3), (8, 64, 56, 56), "fused_stages"),
        ((0, 1), (8, 64, 56, 56), "fused_stages"),
        ((2,), (8, 64, 56, 56), None),
        ((0,), (512, 64, 28, 28), "in_parts"),
        ((0,), (8, 64, 56, 56), None),
        ((0,), (8, 64, 28, 28), None),
    ],
)
def test_axes_that_tiles_of_a_gpu_reduce(axes, shape, route):
    """Rows of 7 pixels would be padded to 8, and those of a column lie apart. Images are reduced in parts where the
    scratch holds some of their products, and not all."""
    nodes = planned([("conv2d", "x w_1x1", "c"), ("reduce", "c", "y", {"op": "sum", "axes": axes})], shape, H200).nodes
    assert [node.route for node in nodes][:1] == [route] if route else len(nodes) == 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "cuts"),
    [
        ("h200", (256, 128, 64, 32, 16, 8, 4, 2)),
        ("mali-g715", (64, 32, 16, 8)),
        ("adreno-750", (64, 32, 16, 8)),
        ("lavapipe", (64, 32, 16, 8)),
    ],
)
def test_images_in_parts_and_what_they_make_fit_the_scratch(name, cuts):
    """The largest that do are taken: fewer images are more launches."""
    call = parse_call("conv_reduce:x=512x32x56x56,w=64x32x1x1,act=relu,axes=0", OPS)
    device, route = load_device(name), next(route for route in OPS["conv_reduce"].routes if route.name == "in_parts")
    assert choose(OPS["conv_reduce"].routes, call, device).route is route
    assert route.params(call, device) == {"images": cuts}
    for images in cuts:
        program = route.build(call, device, {"images": images})
        assert program.scratch["some"] + program.scratch["parts"] == 4 * 64 * 56 * 56 * (images + 512 // images)
    larger = parse_call("conv_reduce:x=64x32x448x448,w=64x32x1x1,axes=0", OPS)  # the parts are 780 MiB and more
    assert not route.params(larger, device)["images"]


def test_stages_keep_f32_between_them():
    """A sum of f16 that is beyond f16 on the way, and not in the end."""
    call = parse_call("gemm_reduce:a=64x32,b=32x48,axis=mn,dtype=f16", OPS)
    route = next(route for route in OPS["gemm_reduce"].routes if route.name == "fused_stages")
    program = route.build(call, LAVAPIPE)
    assert program.scratch["stage"] == 4 * 48 and "stage" not in program.elements


@pytest.mark.parametrize(("constant", "fused"), [("k", True), ("thin", False)])
def test_a_product_is_fused_where_its_own_route_has_the_tiles(constant, fused):
    nodes = planned([("matmul", f"a {constant}", "m"), rows("sum")], (512, 256), H200, reads="a").nodes
    assert [node.route for node in nodes] == (["fused_partials"] if fused else ["skinny", nodes[-1].route])
    if not fused:
        assert "by its route shared, and here it is skinny" in nodes[-1].remark


@pytest.mark.parametrize(
    ("options", "ops", "why"),
    [
        (Options(passes=False), ["matmul", "reduce"], ""),
        (Options(routes={"gemm_reduce": "unfused"}), ["matmul", "reduce"], "unfused is forced"),
        (Options(routes={"gemm_reduce": "fused_partials"}), ["gemm_reduce"], "is part of it"),
        (Options(routes={"matmul": "register"}), ["matmul", "reduce"], "are set"),
        (Options(routes={"node:matmul_m": "register"}), ["matmul", "reduce"], "are set"),
        (Options(routes={"reduce": "serial"}), ["matmul", "reduce"], "are set"),
        (Options(routes={"node:reduce_y": "serial"}), ["matmul", "reduce"], "are set"),
        (Options(routes={"node:matmul_m": "fused_partials"}), ["gemm_reduce"], "is part of it"),
        (Options(routes={"node:matmul_m": "unfused"}), ["gemm_reduce"], "is part of it"),
        (Options(params={"matmul:register": {"rows": 4}}, routes={"matmul": "register"}), ["matmul", "reduce"], "set"),
        (Options(params={"gemm_reduce": {"rows": 4}}), ["gemm_reduce"], "is part of it"),
    ],
)
def test_what_the_caller_sets_is_kept(options, ops, why):
    graph = make_graph(A, [MATMUL, rows("sum")], "y", CONSTANTS)
    nodes = plan(graph, LAVAPIPE, options).plan.nodes
    assert [node.call.op for node in nodes] == ops
    assert why in nodes[-1].remark
    assert nodes[0].route == options.routes.get("node:matmul_m", nodes[0].route)


def test_what_was_measured_decides():
    graph = make_graph(A, [MATMUL, rows("sum")], "y", CONSTANTS)
    text = "gemm_reduce:a=5x3,b=3x6,bias=6,keep=1,dtype=f32"
    (node,) = plan(graph, LAVAPIPE, Options(measured={})).plan.nodes
    assert node.text == text
    routes = {route.name: route for route in OPS["gemm_reduce"].routes}
    slow, fast = (
        Candidate(name, routes[name].resolve(node.call, LAVAPIPE, {}), us, 0.1)
        for name, us in (("fused_lanes", 9.0), ("unfused", 5.0))
    )
    nodes = plan(graph, LAVAPIPE, Options(measured={text: (slow, fast)})).plan.nodes
    assert [n.call.op for n in nodes] == ["matmul", "reduce"] and "unfused is measured" in nodes[-1].remark


def test_an_explanation_says_what_became_of_them():
    one = plan(make_graph(A, [MATMUL, rows("sum")], "y", CONSTANTS), LAVAPIPE).plan
    assert "reduce 'reduce_y' is part of it" in explain_plan(one).rows[0]["by"]
    two = plan(make_graph(A, [MATMUL, rows("sum")], "m y", CONSTANTS), LAVAPIPE).plan
    (_, reduce) = explain_plan_data(two)["nodes"]
    assert "not in one with matmul node 'matmul_m': its result is an output of the graph too: " in reduce["note"]


def test_half_precision_is_fused_too():
    half = {name: array.astype(np.float16) for name, array in CONSTANTS.items() if name != "huge"}
    before = make_bound({"a": TensorSpec((5, 3), DType.F16)}, [MATMUL, rows("sum")], "y", half)
    after, remarks = rewritten(before, LAVAPIPE, Options())
    assert [node.call.op for node in after.nodes] == ["gemm_reduce"] and not remarks.get("reduce_y")


def test_nothing_to_reduce_stays_two():
    before = make_bound({"a": (0, 3)}, [MATMUL, rows("sum", 0)], "y", CONSTANTS)
    after, remarks = rewritten(before, LAVAPIPE, Options())
    assert after.nodes == before.nodes and "there is nothing along m to reduce" in remarks["reduce_y"]
