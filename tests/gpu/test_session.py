"""Sessions on a device: replays, inputs and their refusals, symbolic shapes, the plans kept for them."""

import numpy as np
import pytest
from session_kit import assert_right, conv_graph, normals

import vkconv
from vkconv.core import DType, GraphError, InputError, UsageError
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.plan import planner
from vkconv.session import MAX_PLANS

pytestmark = pytest.mark.gpu


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
        ({1: normals(1, 3, 9, 11)}, "no input 1; it takes x"),
        (
            {"x": np.ma.masked_less(normals(1, 3, 9, 11), 0)},
            r"has 1\d\d masked elements, of 297; give them values with .filled",
        ),
        ({"x": normals(1, 3, 9, 12)}, "'x' of 'net' has shape 1x3x9x12, but the model takes 1x3x9x11"),
        ({"x": normals(3, 9, 11)}, "has shape 3x9x11, but the model takes 1x3x9x11"),
        ({"x": np.zeros((1, 3, 9, 11))}, r"is f32, the array is float64; convert it with .astype\('float32'\)"),
        ({"x": np.zeros((1, 3, 9, 11), np.int32)}, "is f32, the array is int32"),
        ({"x": normals(1, 3, 9, 11).tolist()}, r"array is float64; convert it with np.asarray\(value, 'float32'\)"),
        ({"x": np.full((1, 3, 9, 11), "a")}, "is f32, the array is <U1"),
        ({"x": [[1.0], [1.0, 2.0]]}, "input 'x' of 'net' is not an array: "),
        ([normals(1, 3, 9, 11)], r"takes a dict from input names to arrays, \{'x': array\}, not a list"),
    ],
    ids=[
        "missing",
        "misspelled",
        "extra",
        "number",
        "masked",
        "shape",
        "rank",
        "float64",
        "int32",
        "list",
        "text",
        "ragged",
        "no dict",
    ],
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


@pytest.mark.parametrize(
    "settings",
    [{"dtype": "f64"}, {"routes": {"node:none": "direct"}}, {"params": {"conv2": {"local": 8}}}],
)
def test_a_session_of_open_dimensions_refuses_names_when_it_is_loaded(settings, device):
    with pytest.raises(UsageError, match=r"there is no|floats are one of"):
        vkconv.load(conv_graph("w"), device, **settings)


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
