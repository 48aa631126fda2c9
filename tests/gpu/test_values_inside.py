"""Values inside others on the device: the same bytes as with copies, whatever lies in what."""

import numpy as np
import pytest
from graph_kit import draw, evaluate, f32, make_graph
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vkconv.ops import OPS
from vkconv.plan.bound import bind
from vkconv.plan.planner import Options
from vkconv.session import Session

pytestmark = pytest.mark.gpu


@st.composite
def graphs(draw):
    """Concats, slices, slices and convolutions of channels of 16 elements, of which any may be read and kept."""
    values, nodes, constants = {"x": 4, "v": 4}, [("tanh", "x", "v")], {}
    for i in range(draw(st.integers(2, 10))):
        source = draw(st.sampled_from(list(values)[-4:]))
        channels, y = values[source], f"v{i}"
        kind = draw(st.sampled_from(["concat", "concat", "slice", "split", "conv", "tanh", "reshape"]))
        if kind == "concat":
            parts = [source, *draw(st.lists(st.sampled_from(list(values)[-4:]), min_size=1, max_size=3))]
            nodes.append(("concat", " ".join(parts), y, {"axis": 1}))
            channels = sum(values[part] for part in parts)
        elif kind == "slice":
            start = draw(st.integers(0, channels - 1))
            end = draw(st.integers(start + 1, channels))
            nodes.append(("slice", source, y, {"starts": (start,), "ends": (end,), "axes": (1,)}))
            channels = end - start
        elif kind == "split" and channels > 1:
            nodes.append(("split", source, f"{y} {y}_rest", {"axis": 1, "sizes": (1, channels - 1)}))
            values[f"{y}_rest"], channels = channels - 1, 1
        elif kind == "conv" and channels < 64:
            made = draw(st.sampled_from([1, 4, 5]))
            constants[f"w{i}"] = f32(made, channels, 1, 1, seed=i) / channels
            nodes.append(("conv2d", f"{source} w{i}", y))
            channels = made
        elif kind == "reshape":
            nodes.append(("reshape", source, f"{y}_flat", {"shape": (channels, 16)}))
            nodes.append(("reshape", f"{y}_flat", y, {"shape": (1, channels, 4, 4)}))
        else:
            nodes.append(("tanh", source, y))
        values[y] = channels
    outputs = dict.fromkeys([list(values)[-1], *draw(st.lists(st.sampled_from(list(values)), max_size=2))])
    return make_graph({"x": (1, 4, 4, 4)}, nodes, " ".join(outputs), constants)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(graphs(), st.booleans())
def test_a_graph_gives_the_same_with_and_without_copies(device, validation, graph, share_memory):
    arrays = draw(graph.inputs, seed=4)
    want = evaluate(bind(graph, OPS), arrays)
    with Session(graph, device, options=Options(share_memory=share_memory), poison=True) as session:
        first, second = session.run(arrays), session.run(arrays)
    assert validation.take() == ""
    for name, expected in zip(graph.outputs, want, strict=True):
        assert first[name].tobytes() == second[name].tobytes()
        np.testing.assert_allclose(first[name], expected, rtol=1e-4, atol=1e-4)
