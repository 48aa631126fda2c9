"""Random graphs on the device against the references: shared memory, aliases, barriers and passes all at once."""

import numpy as np
import pytest
from graph_kit import draw, evaluate, f32, make_graph
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vkconv.backend.runtime import select_device
from vkconv.ops import OPS
from vkconv.plan.bound import bind
from vkconv.plan.planner import Options, plan
from vkconv.session import Session

pytestmark = pytest.mark.gpu
CONSTANTS = {"one": np.ones(1, np.float32), "three": np.full((), 3, np.float32)}


def one_input(kind, rows, cols, n):
    """Steps that read one matrix: (op, attributes, shapes that it makes) with free choices drawn from ``n``."""
    return {
        "tanh": ("tanh", {}, [(rows, cols)]),
        "sigmoid": ("sigmoid", {}, [(rows, cols)]),
        "identity": ("identity", {}, [(rows, cols)]),
        "softmax": ("softmax", {"axis": n % 2}, [(rows, cols)]),
        "transpose": ("transpose", {"perm": (1, 0)}, [(cols, rows)]),
        "reshape": ("reshape", {"shape": (cols, rows), "allowzero": True}, [(cols, rows)]),
        "split": (
            "split",
            {"axis": 0, "sizes": (min(n, rows), rows - min(n, rows))},
            [(min(n, rows), cols), (rows - min(n, rows), cols)],
        ),
        "slice": (
            "slice",
            {"starts": (min(n, cols),), "ends": (cols,), "axes": (1,), "steps": (2,)},
            [(rows, (cols - min(n, cols) + 1) // 2)],
        ),
        "pad": ("pad", {"pads": (1, 0, 0, 0), "value": 0.5}, [(rows + 1, cols)]),
        "sum": ("reduce", {"op": "sum", "axes": (1,)}, [(rows, 1)]),
    }[kind]


ONE = ("tanh", "sigmoid", "identity", "softmax", "transpose", "reshape", "split", "slice", "pad", "sum")
TWO = {
    "add": lambda a, b: b in (a, (1, a[1]), (a[0], 1), (1, 1)),
    "mul": lambda a, b: b in (a, (1, a[1]), (a[0], 1), (1, 1)),
    "matmul": lambda a, b: a[1] == b[0],
    "concat": lambda a, b: a[1] == b[1] and a[0] + b[0] <= 20,
}
MADE = {
    "add": lambda a, b: a,
    "mul": lambda a, b: a,
    "matmul": lambda a, b: (a[0], b[1]),
    "concat": lambda a, b: (a[0] + b[0], a[1]),
}


@st.composite
def graphs(draw):
    """A graph over small matrices, some of them empty, with one input or two; tanh keeps the values near 1."""
    sides = st.integers(1, 7)
    shapes = {"x": (draw(sides), draw(sides))}
    if draw(st.booleans()):
        shapes["z"] = (draw(sides), draw(st.integers(0, 7)))
    inputs, nodes, constants = dict(shapes), [], dict(CONSTANTS)
    for i in range(draw(st.integers(1, 14))):
        recent = list(shapes)[-5:]
        x = draw(st.sampled_from(recent))
        kind = draw(st.sampled_from((*ONE, *TWO, "scale", "conv", "conv")))
        if kind in ONE:
            op, attrs, made = one_input(kind, *shapes[x], draw(st.integers(0, 7)))
            names = [f"v{i}_{k}" for k in range(len(made))]
            nodes.append((op, x, " ".join(names), attrs))
            shapes |= dict(zip(names, made, strict=True))
        elif kind in TWO:
            partners = [name for name in recent if TWO[kind](shapes[x], shapes[name])]
            if partners:
                other = draw(st.sampled_from(partners))
                nodes.append((kind, f"{x} {other}", f"v{i}", {"axis": 0} if kind == "concat" else {}))
                nodes.append(("tanh", f"v{i}", f"t{i}"))
                shapes[f"v{i}"] = shapes[f"t{i}"] = MADE[kind](shapes[x], shapes[other])
        elif kind == "scale":
            op, number = draw(st.sampled_from(["mul", "div", "add"])), draw(st.sampled_from(["one", "three"]))
            nodes.append((op, f"{x} {number}", f"v{i}"))
            shapes[f"v{i}"] = shapes[x]
        elif 0 not in shapes[x]:
            channels, (rows, cols) = draw(st.sampled_from([1, 3])), shapes[x]
            constants[f"w{i}"] = f32(channels, 1, 3, 3, seed=i) / 3
            nodes.append(("unsqueeze", x, f"u{i}", {"axes": (0, 1)}))
            nodes.append(("conv2d", f"u{i} w{i}", f"c{i}", {"padding": (1,)}))
            nodes.append((draw(st.sampled_from(["hard_swish", "relu", "identity"])), f"c{i}", f"a{i}"))
            shapes[f"v{i}"] = (channels * rows, cols)
            nodes.append(("reshape", f"a{i}", f"v{i}", {"shape": shapes[f"v{i}"]}))
    outputs = dict.fromkeys([list(shapes)[-1], *draw(st.lists(st.sampled_from(list(shapes)), max_size=2))])
    return make_graph(inputs, nodes, " ".join(outputs), constants)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(graphs(), st.booleans(), st.booleans())
def test_a_random_graph_agrees_with_the_references(device, validation, graph, passes, share_memory):
    arrays = draw(graph.inputs, seed=4)
    want = evaluate(bind(graph, OPS), arrays)
    options = Options(passes=passes, share_memory=share_memory)
    with Session(graph, device, options=options, poison=True) as session:
        first, second = session.run(arrays), session.run(arrays)
    assert validation.take() == ""
    for name in graph.outputs:
        assert first[name].tobytes() == second[name].tobytes()
    agrees(graph, first, want)


def agrees(graph, got, want):
    for name, expected in zip(graph.outputs, want, strict=True):
        assert got[name].shape == expected.shape
        np.testing.assert_allclose(got[name], expected, rtol=1e-4, atol=1e-4, equal_nan=True)


def run_any_routes(device, graph, rng):
    """A random one of the routes that each node may take, and the references of the outputs."""
    arrays = draw(graph.inputs, seed=4)
    _, facts = select_device(device)
    planned = plan(graph, facts, Options(passes=False)).plan
    allowed = {n.name: [v.route.name for v in n.choice.verdicts if v.allowed] for n in planned.nodes if n.choice}
    routes = {f"node:{name}": rng.choice(names) for name, names in allowed.items()}
    with Session(graph, device, options=Options(routes=routes, passes=False), poison=True) as session:
        got = session.run(arrays)
        assert {f"node:{n.name}": n.route for n in session.plan.nodes if n.choice} == routes
    agrees(graph, got, evaluate(bind(graph, OPS), arrays))


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(graphs(), st.randoms(use_true_random=False))
def test_any_routes_of_a_random_graph_agree_with_the_references(device, validation, graph, rng):
    run_any_routes(device, graph, rng)
    assert validation.take() == ""
