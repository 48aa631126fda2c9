"""Whether a product and the reduction of its result are one node: what routes, devices, callers and times say to it."""

import pytest
from graph_kit import f32, make_graph
from pass_parts import CONSTANTS
from reduced_graphs import MATMUL, MEAN, A, rows

from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.explain import explain_plan, explain_plan_data
from vkconv.plan.planner import Options, plan
from vkconv.route import Candidate, choose

LAVAPIPE, H200 = load_device("lavapipe"), load_device("h200")
LARGE = {"w_1x1": f32(256, 64, 1, 1), "w_3x3": f32(64, 64, 3, 3), "k": f32(256, 192), "thin": f32(256, 8)}


# Inner routes that no shipped device takes by rule: GPUs have a faster one, as CPUs do; one is to be asked for.
NEVER = {
    "conv_reduce": {
        *(
            f"conv2d/{route}"
            for route in (
                "pointwise",
                "pointwise_vec4",
                "direct_tile",
                "block_diagonal",
                "space_to_depth",
                "depthwise_planes",
            )
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
    """Winograd and patches are chosen in f32 alone."""
    unfused, taken, there = next(route for route in OPS[name].routes if route.name == "unfused"), set(), set()
    for text in OPS[name].cases:
        call = parse_call(f"{text},dtype={dtype}", OPS)
        for device in (LAVAPIPE, H200, load_device("mali-g715"), load_device("raspberry-pi-4")):
            for inner, sub in unfused.inner(call, device, {}).items():
                inner = inner.removesuffix("_also")  # the second reduction has the routes of the first
                there |= {f"{inner}/{route.name}" for route in sub.routes}
                taken.add(f"{inner}/{choose(sub.routes, sub.call, device).route.name}")
    never = NEVER[name] | (OF_16_BITS if dtype == "f32" else {"conv2d/winograd", "conv2d/shared_patch"})
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
