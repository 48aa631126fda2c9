"""Sessions on a device: replays, inputs and their refusals, symbolic shapes, lifetime, threads, profiles."""

import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import vkconv
from vkconv.core import DType, GraphError, InputError, LimitError, UsageError, VkconvError
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.plan import planner
from vkconv.session import MAX_PLANS

pytestmark = pytest.mark.gpu


def normals(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def conv_graph(width=11, *, weights="constant"):
    """conv2d, hard_swish spelled out by one node, mean over the image; x is (1, 3, 9, width)."""
    w, b = normals(5, 3, 3, 3, seed=1), normals(5, seed=2)
    nodes = (
        Node("conv", "conv2d", ("x", "w", "b"), ("c",), {"padding": (1,)}),
        Node("act", "hard_swish", ("c",), ("h",)),
        Node("pool", "reduce", ("h",), ("y",), {"op": "mean", "axes": (2, 3), "keepdims": False}),
    )
    inputs = {"x": TensorSpec((1, 3, 9, width))}
    if weights == "input":
        return Graph({**inputs, "w": TensorSpec(w.shape), "b": TensorSpec(b.shape)}, ("y", "h"), nodes, {}, "net")
    return Graph(inputs, ("y", "h"), nodes, {"w": w, "b": b}, "net")


def expected(x):
    """The same network in float64, from its definition."""
    w, b = normals(5, 3, 3, 3, seed=1).astype(np.float64), normals(5, seed=2).astype(np.float64)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    c = np.einsum("nchwij,ocij->nohw", windows, w) + b[:, None, None]
    h = c * np.clip(c / 6 + 0.5, 0, 1)
    return {"y": h.mean((2, 3)), "h": h}


def assert_right(outputs, x):
    for name, want in expected(x).items():
        np.testing.assert_allclose(outputs[name], want, rtol=0, atol=2e-5 * np.abs(want).max())


@pytest.fixture
def plans_made(monkeypatch):
    """Every plan that sessions make, in order."""
    made = []

    def counted(*args, **kwargs):
        made.append(planner.plan(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr("vkconv.session.plan", counted)
    return made


@pytest.fixture
def net(device):
    with vkconv.load(conv_graph(), device) as session:
        yield session


# ---- runs


def test_ten_runs_give_identical_bytes_and_the_right_ones(net):
    x = normals(1, 3, 9, 11)
    first = net.run({"x": x})
    assert_right(first, x)
    for _ in range(9):
        again = net.run({"x": x})
        assert all(again[name].tobytes() == first[name].tobytes() for name in first)


def test_a_run_depends_on_nothing_but_its_inputs(net):
    x, other = normals(1, 3, 9, 11), normals(1, 3, 9, 11, seed=9)
    first = net.run({"x": x})["y"]
    assert not np.array_equal(net.run({"x": other})["y"], first)
    np.testing.assert_array_equal(net.run({"x": x})["y"], first)


def test_outputs_are_arrays_of_their_own(net):
    x = normals(1, 3, 9, 11)
    first = net.run({"x": x})
    kept = first["y"].copy()
    first["h"][...] = 7
    second = net.run({"x": -x})
    np.testing.assert_array_equal(first["y"], kept)
    assert not any(np.shares_memory(first[k], second[k]) for k in first)
    assert all(a.flags.writeable and a.flags.c_contiguous for a in second.values())


def test_nan_and_infinity_pass_through(device):
    nodes = (Node("s", "sub", ("x", "z"), ("d",)), Node("m", "mul", ("d", "d"), ("y",)))
    graph = Graph({"x": TensorSpec((7,)), "z": TensorSpec((7,))}, ("y",), nodes)
    x = np.array([np.nan, np.inf, -np.inf, np.inf, 1, -0.0, 3e38], np.float32)
    z = np.array([1, np.inf, np.inf, 1, np.nan, 0.0, -3e38], np.float32)
    with vkconv.load(graph, device) as session, np.errstate(all="ignore"):
        np.testing.assert_array_equal(session.run({"x": x, "z": z})["y"], (x - z) ** 2)


def test_weights_may_be_inputs(net, device):
    x = normals(1, 3, 9, 11)
    with vkconv.load(conv_graph(weights="input"), device) as session:
        for seed in (1, 5, 1):
            outputs = session.run({"x": x, "w": normals(5, 3, 3, 3, seed=seed), "b": normals(5, seed=2)})
            same = outputs["y"].tobytes() == net.run({"x": x})["y"].tobytes()
            assert same == (seed == 1)


def test_outputs_that_are_inputs_constants_or_views(device):
    graph = Graph(
        {"x": TensorSpec((2, 3)), "empty": TensorSpec((0, 4))},
        ("x", "flat", "c", "none", "sum"),
        (
            Node("f", "flatten", ("x",), ("flat",), {"axis": 0}),
            Node("n", "relu", ("empty",), ("none",)),
            Node("s", "reduce", ("none",), ("sum",), {"op": "sum", "axes": (0,), "keepdims": False}),
        ),
        {"c": np.arange(5)},
    )
    x = normals(2, 3)
    with vkconv.load(graph, device) as session:
        outputs = session.run({"x": x, "empty": np.empty((0, 4), np.float32)})
    assert set(outputs) == set(graph.outputs)
    np.testing.assert_array_equal(outputs["x"], x)
    np.testing.assert_array_equal(outputs["flat"], x.reshape(1, 6))
    np.testing.assert_array_equal(outputs["c"], np.arange(5))
    assert outputs["none"].shape == (0, 4)
    np.testing.assert_array_equal(outputs["sum"], np.zeros(4, np.float32))


@pytest.mark.parametrize("route", ["direct", "direct_tile"])
def test_a_forced_route_is_the_one_dispatched(route, device):
    x = normals(1, 3, 9, 11)
    with vkconv.load(conv_graph(), device, routes={"node:conv": route}) as session:
        assert_right(session.run({"x": x}), x)
        table = session.profile({"x": x})
    assert {row["node"]: row["route"] for row in table.rows}["conv"] == route


# ---- inputs


@pytest.mark.parametrize(
    "arrange",
    [
        lambda x: x.astype(">f4"),
        lambda x: np.asfortranarray(x),
        lambda x: np.repeat(x, 2, axis=3)[:, :, :, ::2],
        lambda x: x[:, :, ::-1].copy()[:, :, ::-1],
        lambda x: np.lib.stride_tricks.as_strided(x, writeable=False),
    ],
    ids=["big-endian", "fortran", "strided", "reversed", "read-only"],
)
def test_any_layout_and_byte_order_of_an_input_will_do(arrange, net):
    x = normals(1, 3, 9, 11)
    np.testing.assert_array_equal(net.run({"x": arrange(x)})["y"], net.run({"x": x})["y"])


@pytest.mark.parametrize(
    ("inputs", "match"),
    [
        ({}, r"'net' needs the input 'x' \(1x3x9x11:f32\), which is missing"),
        ({"X": 1}, r"no input 'X'.*it takes x \(1x3x9x11:f32\)"),
        ({"x": normals(1, 3, 9, 11), "image": 1}, "no input 'image'"),
        ({"x": normals(1, 3, 9, 12)}, "'x' of 'net' has shape 1x3x9x12, but the model takes 1x3x9x11"),
        ({"x": normals(3, 9, 11)}, "has shape 3x9x11, but the model takes 1x3x9x11"),
        ({"x": np.zeros((1, 3, 9, 11))}, r"is f32, the array is float64; convert it with .astype\('float32'\)"),
        ({"x": np.zeros((1, 3, 9, 11), np.int32)}, "is f32, the array is int32"),
        ({"x": np.full((1, 3, 9, 11), "a")}, "is f32, the array is <U1"),
        ({"x": [[1.0], [1.0, 2.0]]}, "input 'x' of 'net' is not an array: "),
        ([normals(1, 3, 9, 11)], r"takes a dict from input names to arrays, \{'x': array\}, not a list"),
    ],
    ids=["missing", "misspelled", "extra", "shape", "rank", "float64", "int32", "text", "ragged", "no dict"],
)
def test_inputs_that_do_not_fit_are_refused_and_the_session_works_on(inputs, match, net):
    with pytest.raises(InputError, match=match):
        net.run(inputs)
    x = normals(1, 3, 9, 11)
    assert_right(net.run({"x": x}), x)


# ---- shapes


def test_two_widths_in_turn_give_the_same_bytes_as_alone(device):
    with vkconv.load(conv_graph("w"), device) as session:
        results = {width: session.run({"x": normals(1, 3, 9, width)}) for width in (7, 16)}
        for width in (16, 7):
            x = normals(1, 3, 9, width)
            assert_right(results[width], x)
            assert session.run({"x": x})["y"].tobytes() == results[width]["y"].tobytes()
            with vkconv.load(conv_graph(width), device) as alone:
                assert alone.run({"x": x})["y"].tobytes() == results[width]["y"].tobytes()


def test_plans_beyond_the_bound_are_dropped_and_made_again(device):
    with vkconv.load(conv_graph("w"), device) as session:
        first = session.run({"x": normals(1, 3, 9, 4)})["y"]
        plans = [session.plan]
        for width in range(5, 5 + MAX_PLANS):
            session.run({"x": normals(1, 3, 9, width)})
            plans.append(session.plan)
        session.run({"x": normals(1, 3, 9, 5 + MAX_PLANS - 1)})
        assert session.plan is plans[-1]  # kept
        np.testing.assert_array_equal(session.run({"x": normals(1, 3, 9, 4)})["y"], first)
        assert session.plan is not plans[0]  # made again


def test_the_bound_on_plans_is_an_option_and_the_least_recently_used_goes(device, plans_made):
    with vkconv.load(conv_graph("w"), device, max_plans=2) as session:
        for width, made in ((4, 1), (5, 2), (4, 2), (6, 3), (4, 3), (5, 4), (4, 4), (6, 5)):
            assert session.run({"x": normals(1, 3, 9, width)})["h"].shape[-1] == width
            assert len(plans_made) == made, width
    with pytest.raises(UsageError, match="at least 1"):
        vkconv.load(conv_graph("w"), device, max_plans=0)


def test_another_batch_costs_one_plan_and_no_compilation(device, plans_made):
    x = normals(4, 3, 9, 7)
    graph = conv_graph()
    graph = graph.replace(inputs={"x": TensorSpec(("n", 3, "h", "w"))})
    with vkconv.load(graph, device) as session:
        session.run({"x": x})
        compiled, loaded = session.timings.compile_us, dict(session._weights.buffers)
        for n in (1, 3, 4, 1):
            outputs = session.run({"x": x[:n]})
            assert_right(outputs, x[:n])
        assert len(plans_made) == 3
        assert session._weights.buffers == loaded
        repeat = session.timings.compile_us
        session.run({"x": x[:2]})
        session.run({"x": x[:2]})
        assert len(plans_made) == 4 and session.timings.compile_us >= repeat >= compiled


def steered_graph():
    """x, as many times as n says, scaled by s: n steers the graph, s is read on the device too."""
    nodes = (
        Node("tile", "tile", ("x", "n"), ("t",)),
        Node("shift", "add", ("t", "s"), ("y",)),
        Node("ends", "slice", ("y", "n", "e"), ("z",)),
    )
    inputs = {"x": TensorSpec((3,)), "n": TensorSpec((1,), DType.I64), "s": TensorSpec(())}
    return Graph(inputs, ("y", "z"), nodes, {"e": np.array([100])}, "steered")


def test_inputs_that_steer_a_graph_are_part_of_what_a_plan_is_for(device, plans_made):
    x = normals(3)
    with vkconv.load(steered_graph(), device) as session:
        assert not plans_made
        with pytest.raises(InputError, match="depends on the values of n"):
            session.explain()
        for n, s, made in ((2, 1, 1), (4, 1, 2), (2, 5, 2), (4, 7, 2)):
            outputs = session.run({"x": x, "n": np.array([n]), "s": np.float32(s)})
            np.testing.assert_array_equal(outputs["y"], np.tile(x, n) + np.float32(s))
            np.testing.assert_array_equal(outputs["z"], outputs["y"][n:])
            assert len(plans_made) == made
        with pytest.raises(InputError, match="'n' of 'steered' is i64"):
            session.run({"x": x, "n": np.array([2.0]), "s": np.float32(1)})
        with pytest.raises(GraphError, match="repeats"):
            session.run({"x": x, "n": np.array([-1]), "s": np.float32(1)})
        outputs = session.run({"x": x, "n": np.array([2]), "s": np.float32(0)})
        np.testing.assert_array_equal(outputs["y"], np.tile(x, 2))


def test_values_that_steer_do_not_pile_up_on_the_device(device):
    nodes = (Node("tile", "tile", ("x", "n"), ("t",)), Node("sum", "add", ("t", "n"), ("y",)))
    inputs = {"x": TensorSpec((1,), DType.I64), "n": TensorSpec((1,), DType.I64)}
    with vkconv.load(Graph(inputs, ("y",), nodes), device, max_plans=2) as session:
        for n in range(1, 30):
            y = session.run({"x": np.array([5]), "n": np.array([n])})["y"]
            assert y.tolist() == [5 + n] * n
            assert len(session._weights.buffers) <= 9


def test_unbound_dimensions_are_asked_for_by_name(device):
    with vkconv.load(conv_graph("width"), device) as session:
        with pytest.raises(InputError, match=r"unbound dimensions \(width\)"):
            session.explain()
        session.run({"x": normals(1, 3, 9, 6)})
        assert len(session.explain().rows) == len(session.plan.nodes) == 2


@pytest.mark.parametrize("shape", [5, None, (1, 3, 9, "w"), (1, 3, 9.0, 8)])
def test_what_is_no_shape_is_refused_at_load(device, shape):
    with pytest.raises(InputError, match="shape given for input 'x'"):
        vkconv.load(conv_graph("w"), device, shapes={"x": shape})


def test_shapes_at_load_plan_before_the_first_run(device):
    with vkconv.load(conv_graph("w"), device, shapes={"x": (1, 3, 9, 8)}) as session:
        assert session.plan.outputs["h"][0].dims == (1, 5, 9, 8)
        assert session.run({"x": normals(1, 3, 9, 9)})["h"].shape == (1, 5, 9, 9)


# ---- limits and lifetime


def test_a_limit_is_refused_before_anything_is_allocated(device):
    side = 1 << 17
    nodes = (Node("big", "add", ("a", "b"), ("y",)),)
    graph = Graph({"a": TensorSpec((side, 1)), "b": TensorSpec((1, side))}, ("y",), nodes)
    with pytest.raises(LimitError, match=str(4 * side * side)):
        vkconv.load(graph, device)


def test_a_closed_session_refuses_everything(device):
    session = vkconv.load(conv_graph(), device)
    x = normals(1, 3, 9, 11)
    session.run({"x": x})
    session.close()
    session.close()
    uses = (lambda: session.run({"x": x}), lambda: session.profile({"x": x}), lambda: session.plan)
    for use in (*uses, session.explain, lambda: session.value("h")):
        with pytest.raises(VkconvError, match="'net' is closed; load the model again"):
            use()


def test_leaving_the_context_closes_also_after_an_error(device):
    with pytest.raises(ZeroDivisionError), vkconv.load(conv_graph(), device) as session:
        1 / 0  # noqa: B018
    with pytest.raises(VkconvError, match="closed"):
        session.run({"x": normals(1, 3, 9, 11)})


def test_results_outlive_the_session(device):
    x = normals(1, 3, 9, 11)
    with vkconv.load(conv_graph(), device) as session:
        outputs = session.run({"x": x})
    del session
    gc.collect()
    assert_right(outputs, x)


CYCLES = """
import gc, re, numpy as np, vkconv
rng = np.random.default_rng(0)
weights = rng.standard_normal((1024, 1024)).astype(np.float32)
nodes = (vkconv.Node("m", "matmul", ("x", "w"), ("y",)),)
graph = vkconv.Graph({"x": vkconv.TensorSpec((1, 1024))}, ("y",), nodes, {"w": weights})

def rss_kib():
    gc.collect()
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1])

for cycle in range(60):
    with vkconv.load(graph) as session:
        session.run({"x": np.ones((1, 1024), np.float32)})
    if cycle == 9:
        before = rss_kib()
print(rss_kib() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_fifty_sessions_leave_no_memory_behind():
    # Without the validation layer, which keeps records of its own.
    environment = {k: v for k, v in os.environ.items() if k != "VK_INSTANCE_LAYERS"}
    done = subprocess.run([sys.executable, "-c", CYCLES], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 5 * 4096  # KiB: five of the fifty weight matrices


def test_plans_for_many_shapes_share_their_weights(device):
    rng = np.random.default_rng(5)
    weights = rng.standard_normal((32, 16, 3, 3), dtype=np.float32)
    node = Node("c", "conv2d", ("x", "w"), ("y",), {"padding": (1, 1, 1, 1)})
    graph = Graph({"x": TensorSpec((1, 16, "h", 8))}, ("y",), (node,), {"w": weights})
    with vkconv.load(graph, device) as session:
        held = set()
        for h in (4, 5, 6, 7, 8, 9, 10, 11, 12, 4):
            x = rng.standard_normal((1, 16, h, 8), dtype=np.float32)
            y = session.run({"x": x})["y"]
            held.add(len(session._weights.buffers))
            with vkconv.load(graph, device) as alone:
                assert alone.run({"x": x})["y"].tobytes() == y.tobytes()
        assert held == {1}
        assert session.plan.memory.weights_bytes == weights.nbytes


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), "a", (1,)])
def test_what_is_no_length_of_time_is_refused(net, timeout_s):
    with pytest.raises(InputError, match="timeout_s is"):
        net.run({"x": normals(1, 3, 9, 11)}, timeout_s=timeout_s)


@pytest.mark.parametrize("timeout_s", [60, 1e4, 1e30, float("inf"), None])
def test_any_length_of_time_is_taken(net, timeout_s):
    x = normals(1, 3, 9, 11)
    assert_right(net.run({"x": x}, timeout_s=timeout_s), x)


TIME_OUT = """
import sys, time, numpy as np, vkconv
n, count = 1024, int(sys.argv[2])
nodes = tuple(vkconv.Node(f"m{i}", "matmul", (f"v{i}", "w"), (f"v{i + 1}",)) for i in range(count))
tensors = {"w": np.eye(n, dtype=np.float32)}
session = vkconv.load(vkconv.Graph({"v0": vkconv.TensorSpec((n, n))}, (f"v{count}",), nodes, tensors, "slow"))
small = vkconv.Graph({"x": vkconv.TensorSpec((4,))}, ("y",), (vkconv.Node("r", "relu", ("x",), ("y",)),))
with vkconv.load(small) as other:
    other.run({"x": np.ones(4, np.float32)})
    try:
        session.run({"v0": np.ones((n, n), np.float32)}, timeout_s=1e-4)
        sys.exit("no time-out")
    except vkconv.VkconvError as error:
        assert "did not finish" in str(error), error
    start = time.perf_counter()
    if sys.argv[1] != "leave":
        session.close()
    if sys.argv[1] == "use":
        x = np.array([-1, 2, -3, 4], np.float32)
        assert other.run({"x": x})["y"].tolist() == [0, 2, 0, 4]
        start = time.perf_counter()
assert time.perf_counter() - start < 1, time.perf_counter() - start
print(time.time())
"""


@pytest.mark.parametrize(("how", "nodes"), [("close", 100), ("leave", 100), ("use", 10)])
def test_after_a_time_out_nothing_waits_and_the_device_works_on(how, nodes):
    """A node takes about 0.2 s on lavapipe."""
    command = [sys.executable, "-c", TIME_OUT, how, str(nodes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert time.time() - float(done.stdout) < 5, "the process did not end"


def test_a_forked_child_is_refused_and_does_not_hang(device):
    code = (
        "import os, signal, sys, numpy as np, vkconv\n"
        "graph = vkconv.Graph({'x': vkconv.TensorSpec((4,))}, ('y',), (vkconv.Node('r', 'relu', ('x',), ('y',)),))\n"
        "x = {'x': np.ones(4, np.float32)}\n"
        "session = vkconv.load(graph)\n"
        "session.run(x)\n"
        "fresh = vkconv.load(graph)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    signal.alarm(30)\n"
        "    caught = 0\n"
        "    for use in (lambda: session.run(x), lambda: fresh.run(x), lambda: vkconv.load(graph)):\n"
        "        try:\n"
        "            use()\n"
        "        except vkconv.VkconvError as error:\n"
        "            caught += 'forked' in str(error)\n"
        "    session.close()\n"
        "    sys.exit(caught)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 3


@pytest.mark.parametrize("outputs", [("", "y"), ("y",), ("y", "")])
def test_an_output_that_nothing_names_is_computed_all_the_same(outputs, device):
    split = Node("s", "split", ("x",), outputs, {"axis": 0, "num_outputs": 2})
    x = np.arange(1, 11, dtype=np.float32).reshape(2, 5)
    with vkconv.load(Graph({"x": TensorSpec((2, 5))}, ("y",), (split,)), device) as session:
        np.testing.assert_array_equal(session.run({"x": x})["y"], x[[outputs.index("y")]])
