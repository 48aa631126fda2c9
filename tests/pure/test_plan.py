"""The planner: data flow through memory, prepacking, aliases, empty values, outputs of every kind, determinism."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flow import check_flow, commands
from graph_kit import f32, i64, made_up_device, make_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_kit import CONV, LAVAPIPE, SMALL_GRAPHS, X
from shipped import one_of_each_driver

from vkconv.core import RouteError, UsageError
from vkconv.device import load_device
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.plan.commands import Copy, Launch
from vkconv.plan.planner import Options, check_names, plan

STAGED = Options(staging=True)


@pytest.mark.parametrize("options", [Options(), Options(passes=False), Options(share_memory=False)], ids=str)
@pytest.mark.parametrize("device", one_of_each_driver())
@pytest.mark.long
def test_values_reach_their_readers_on_every_shipped_device(device, options):
    for graph in SMALL_GRAPHS.values():
        memory = check_flow(graph, load_device(device), options).memory
        assert memory.lower_bound_bytes <= memory.activations_bytes


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_values_reach_their_readers_in_any_graph(data):
    values, nodes = ["x"], []
    for i in range(data.draw(st.integers(1, 12))):
        op = data.draw(st.sampled_from(["relu", "add", "identity", "softmax", "matmul", "transpose", "flatten"]))
        reads = [data.draw(st.sampled_from(values[-4:])) for _ in range(2 if op in ("add", "matmul") else 1)]
        nodes.append((op, " ".join(reads), f"v{i}", {"axis": 1} if op in ("softmax", "flatten") else {}))
        values.append(f"v{i}")
    outputs = data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
    graph = make_graph({"x": (6, 6)}, nodes, " ".join(outputs))
    check_flow(graph, LAVAPIPE, Options(passes=data.draw(st.booleans()), share_memory=data.draw(st.booleans())))


# ---- memory


def test_a_chain_runs_in_the_lower_bound():
    nodes = [("softmax", f"v{i}", f"v{i + 1}", {"axis": 0}) for i in range(20)]
    memory = check_flow(make_graph({"v0": (8, 32)}, nodes, "v20"), LAVAPIPE, STAGED).memory
    assert memory.activations_bytes == memory.lower_bound_bytes == 2 * 8 * 32 * 4


def test_without_sharing_no_two_values_share_a_byte():
    result = plan(SMALL_GRAPHS["residual"], LAVAPIPE, Options(share_memory=False, passes=False)).plan
    assert set(result.values) == {"x", "a", "h", "p", "s", "m", "y"}
    regions = [region for _, region in result.values.values()]
    assert not any(a.overlaps(b) for i, a in enumerate(regions) for b in regions[:i])


def test_aliases_have_the_bytes_of_what_they_stand_for():
    result = plan(SMALL_GRAPHS["layout"], LAVAPIPE).plan
    assert result.values["r"][1] == result.values["a"][1]
    assert result.values["y"][1] == result.values["c"][1]
    assert result.values["r"][0].dims == (12, 2)
    assert {n.call.op: n.route for n in result.nodes}["reshape"] == "alias"


# ---- empty values, and outputs of every kind


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        ([("relu", "e", "y")], (0, 3)),
        ([("concat", "e x", "y", {"axis": 0})], (4, 3)),
        ([("concat", "x e x", "y", {"axis": 0})], (8, 3)),
        ([("transpose", "e", "t"), ("matmul", "t e", "y")], (3, 3)),
        ([("reduce", "e", "y", {"op": "sum", "axes": (0,), "keepdims": False})], (3,)),
        ([("reshape", "e nothing", "y", {"allowzero": True})], (3, 0)),
    ],
    ids=lambda v: v[-1][0] if isinstance(v, list) else "",
)
@pytest.mark.parametrize("source", ["computed", "input"])
def test_empty_values_take_part(nodes, shape, source):
    if source == "computed":
        inputs, first = {"x": (4, 3)}, [("slice", "x", "e", {"starts": (4,), "ends": (9,), "axes": (0,)})]
    else:
        inputs, first = {"x": (4, 3), "e": (0, 3)}, []
    result = check_flow(make_graph(inputs, first + nodes, "y", {"nothing": i64(3, 0)}), LAVAPIPE)
    assert result.outputs["y"][0].dims == shape
    assert all(n.route == "empty" and n.dispatches == 0 for n in result.nodes if n.call.is_empty)


def test_an_input_as_output_is_copied_through():
    result = check_flow(make_graph(X, [], "x"), LAVAPIPE, STAGED)
    assert [c.node for c in commands(result.run, Copy)] == ["upload x", "download x"]


def test_outputs_that_fold_are_known_and_need_no_device():
    graph = make_graph({}, [("reshape", "w s", "y"), ("relu", "w", "z")], "y z w", {"w": f32(2, 3), "s": i64(3, 2)})
    result = plan(graph, LAVAPIPE).plan
    assert {name: a.shape for name, a in result.known.items()} == {"y": (3, 2), "z": (2, 3), "w": (2, 3)}
    assert (result.run, result.load, result.outputs, result.buffers) == ((), (), {}, {})


def test_an_output_listed_twice_is_downloaded_once():
    result = check_flow(make_graph(X, [("relu", "x", "y")], "y y"), LAVAPIPE, STAGED)
    assert [c.node for c in commands(result.run, Copy)] == ["upload x", "download y"]


def test_an_alias_and_its_source_may_both_be_outputs():
    result = check_flow(make_graph(X, [("relu", "x", "r"), ("flatten", "r", "y")], "r y x"), LAVAPIPE, STAGED)
    assert [c.node for c in commands(result.run, Copy)] == ["upload x", "download r", "download y", "download x"]
    assert result.outputs["y"][0].dims == (1, 216)


def test_an_input_that_nothing_reads_is_taken_and_not_uploaded():
    result = check_flow(make_graph({**X, "unused": (3,)}, [("relu", "x", "y")], "y"), LAVAPIPE, STAGED)
    assert set(result.inputs) == {"x", "unused"}
    assert "upload unused" not in [c.node for c in commands(result.run, Copy)]


# ---- forced routes


def test_a_node_is_forced_before_its_op():
    result = plan(SMALL_GRAPHS["attention"], LAVAPIPE, Options({"matmul": "register", "node:matmul_q": "shared"})).plan
    routes = {n.name: (n.route, n.choice.by) for n in result.nodes if n.call.op == "matmul"}
    assert routes.pop("matmul_q") == ("shared", "forced")
    assert set(routes.values()) == {("register", "forced")}


@pytest.mark.parametrize(
    ("key", "route", "match"),
    [
        ("conv2d", None, "route conv2d=None; it is the name of a route"),
        ("conv2", "direct", r"there is no 'conv2' here \(did you mean 'conv2d'\?\)"),
        ("node:conv2d_z", "direct", r"no 'node:conv2d_z' here \(did you mean 'node:conv2d_y'\?\)"),
        ("conv2d", "dirct", r"conv2d has no route 'dirct' \(did you mean 'direct'\?\); it has by_images, "),
        ("node:conv2d_y", "pointwize", "conv2d has no route 'pointwize'"),
    ],
)
def test_forcing_what_does_not_exist_is_refused(key, route, match):
    with pytest.raises(UsageError, match=match):
        plan(CONV, LAVAPIPE, Options({key: route}))


OPEN = CONV.replace(inputs={"x": TensorSpec(("n", 3, "h", "w"))})


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"dtype": "f64"}, "dtype f64 for the graph: floats are one of"),
        ({"dtypes": {"node:conv2d_z": "f16"}}, r"no 'node:conv2d_z' here \(did you mean 'node:conv2d_y'\?\)"),
        ({"routes": {"conv2": "direct"}}, r"there is no 'conv2' here \(did you mean 'conv2d'\?\)"),
        ({"routes": {"conv2d": "dirct"}}, r"conv2d has no route 'dirct' \(did you mean 'direct'"),
        ({"routes": {"node:conv2d_z": "direct"}}, r"no 'node:conv2d_z' here \(did you mean 'node:conv2d_y'\?\)"),
        ({"routes": {"node:conv2d_y": "dirct"}}, r"no op has a route 'dirct' \(did you mean 'direct'"),
        ({"params": {"conv2": {"local": 8}}}, "there is no 'conv2' here"),
        ({"params": {"conv2d:dirct": {"local": 8}}}, "conv2d has no route 'dirct'"),
        ({"params": {"conv2d": 8}}, "maps no names to values"),
        ({"policy": "tvm"}, "no policy 'tvm'"),
        ({"skip_passes": ["fold_bais"]}, "'fold_bais' does not exist"),
        ({"pieces": 0}, "pieces is 0"),
    ],
)
def test_names_that_no_shape_makes_right_are_refused_before_shapes_are_known(options, match):
    with pytest.raises(UsageError, match=match):
        check_names(Options(**options), OPEN)


@pytest.mark.parametrize("options", [Options(), Options(dtype="f16", io_dtype="bf16")])
@pytest.mark.parametrize("graph", ["conv", "attention", "layout"])
def test_names_of_nodes_that_passes_make_are_left_to_the_plan(graph, options):
    made = plan(SMALL_GRAPHS[graph], LAVAPIPE, options).plan.nodes
    check_names(Options({f"node:{node.name}": node.route for node in made if node.choice}), SMALL_GRAPHS[graph])


def test_forcing_against_a_must_names_the_node_and_the_actual_value():
    with pytest.raises(
        RouteError, match=r"conv2d node 'conv2d_y' \(conv2d:x=1x3x9x8.*a 1x1 kernel, and here it is 3x3"
    ):
        plan(CONV, LAVAPIPE, Options({"conv2d": "pointwise"}))


# ---- purity


def test_planning_twice_gives_the_same_plan():
    for graph in SMALL_GRAPHS.values():
        assert repr(plan(graph, LAVAPIPE).plan) == repr(plan(graph, LAVAPIPE).plan)


@pytest.mark.long
def test_planning_is_the_same_in_every_process_and_needs_no_vulkan():
    program = """
import hashlib, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name == "kp" or name.startswith(("kp.", "vkconv.backend")):
            raise AssertionError(f"planning imports {name}")
sys.meta_path.insert(0, Refuse())
sys.path.insert(0, sys.argv[1])
import test_plan
for graph in test_plan.SMALL_GRAPHS.values():
    commands = test_plan.plan(graph, test_plan.LAVAPIPE).plan
    print(hashlib.sha256(repr((commands.run, commands.load, commands.buffers)).encode()).hexdigest())
"""
    here = str(Path(__file__).parent)
    runs = [
        subprocess.run(
            [sys.executable, "-c", program, here],
            check=True,
            capture_output=True,
            text=True,
            env={"PATH": "/usr/bin", "PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(p for p in sys.path if p)},
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] and len(runs[0].split()) == len(SMALL_GRAPHS)


def test_a_made_up_device_changes_routes():
    gpu = plan(make_graph({"a": (64, 64), "b": (64, 64)}, [("matmul", "a b", "y")], "y"), made_up_device()).plan
    small = made_up_device(maxComputeSharedMemorySize=4096)
    without = plan(make_graph({"a": (64, 64), "b": (64, 64)}, [("matmul", "a b", "y")], "y"), small).plan
    assert [gpu.nodes[0].route, without.nodes[0].route] == ["shared", "register"]


# ---- weights that plans of one session share


def symbolic_net():
    """Two convolutions over any width, and a product with a constant that steps read as it is."""
    rng = np.random.default_rng(3)
    nodes = (
        Node("c1", "conv2d", ("x", "w1"), ("a",), {"padding": (1, 1, 1, 1)}),
        Node("c2", "conv2d", ("a", "w2"), ("b",)),
        Node("m", "mul", ("b", "k"), ("y",)),
    )
    constants = {
        "w1": rng.standard_normal((16, 3, 3, 3)).astype(np.float32),
        "w2": rng.standard_normal((8, 16, 1, 1)).astype(np.float32),
        "k": rng.standard_normal((1, 1, 8, 1)).astype(np.float32),
    }
    return Graph({"x": TensorSpec((1, 3, 8, "w"))}, ("y",), nodes, constants)


def test_a_second_plan_of_a_session_loads_only_what_is_new():
    device = load_device("lavapipe")
    first = plan(symbolic_net(), device, None, {"x": (1, 3, 8, 32)}, {})
    second = plan(symbolic_net(), device, None, {"x": (1, 3, 8, 64)}, first.plan.weights)
    assert first.plan.load and first.constants
    assert not second.plan.load and not second.constants and not second.plan.weights
    assert not any(name.startswith("weights") for name in second.plan.buffers)
    assert second.plan.memory.weights_bytes == first.plan.memory.weights_bytes
    homes = {region for c in second.plan.run if isinstance(c, Launch) for region, _ in c.binds}
    assert set(first.plan.weights.values()) <= homes


def test_constants_of_other_content_are_not_taken_for_resident():
    device = load_device("lavapipe")
    net = symbolic_net()
    first = plan(net, device, None, {"x": (1, 3, 8, 32)}, {})
    other = net.replace(constants={**net.constants, "w2": net.constants["w2"] + 1})
    second = plan(other, device, None, {"x": (1, 3, 8, 32)}, first.plan.weights)
    assert list(second.constants) == ["w2"]
    assert {name for name in second.plan.buffers if name.startswith("weights")} == {"weights:1"}


def test_equal_constants_are_kept_once():
    device = load_device("lavapipe")
    net = symbolic_net()
    twice = Graph(
        net.inputs,
        ("y", "z"),
        (*net.nodes, Node("c3", "conv2d", ("a", "w3"), ("z",))),
        {**net.constants, "w3": net.constants["w2"].copy()},
    )
    once = plan(net, device, None, {"x": (1, 3, 8, 32)}, {}).plan.memory.weights_bytes
    assert plan(twice, device, None, {"x": (1, 3, 8, 32)}, {}).plan.memory.weights_bytes == once
    assert plan(twice, device, None, {"x": (1, 3, 8, 32)}).plan.memory.weights_bytes > once
