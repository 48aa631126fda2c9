"""The part of a graph between two tensors, as a graph and as a file."""

import numpy as np
import pytest
from cli_kit import vkconv
from graph_kit import evaluate, f32, make_graph

from vkconv.core import UsageError
from vkconv.graph import load_model
from vkconv.graph.vkc import save_vkc
from vkconv.ops import OPS
from vkconv.plan.bound import bind
from vkconv.plan.extract import extract

RNG = np.random.default_rng(2)
# Two ways from a to the sum, and an input that comes in later.
GRAPH = make_graph(
    {"x": ("n", 3), "late": ("n", 4)},
    [
        ("matmul", "x w", "a"),
        ("relu", "a", "b"),
        ("exp", "a", "c"),
        ("add", "b c", "sum"),
        ("mul", "sum late", "y"),
    ],
    "y",
    {"w": f32(3, 4)},
)


def values(graph, arrays):
    shapes = {name: array.shape for name, array in arrays.items()}
    return dict(zip(graph.outputs, evaluate(bind(graph, OPS, shapes), arrays), strict=True))


def test_a_part_makes_what_the_whole_does():
    arrays = {"x": RNG.standard_normal((5, 3)).astype(np.float32), "late": np.ones((5, 4), np.float32)}
    shapes = {name: array.shape for name, array in arrays.items()}
    whole = values(GRAPH.replace(outputs=("a", "b", "sum", "y")), arrays)
    head = extract(GRAPH, OPS, targets=["b"])
    assert dict(head.inputs) == {"x": GRAPH.inputs["x"]} and [n.op for n in head.nodes] == ["matmul", "relu"]
    np.testing.assert_array_equal(values(head, {"x": arrays["x"]})["b"], whole["b"])
    middle = extract(GRAPH, OPS, ["a"], ["sum"], shapes)
    assert str(middle.inputs["a"]) == "5x4:f32" and not middle.constants
    np.testing.assert_allclose(values(middle, {"a": whole["a"].astype(np.float32)})["sum"], whole["sum"], rtol=1e-6)
    tail = extract(GRAPH, OPS, ["sum", "late"], shapes=shapes)
    assert [n.op for n in tail.nodes] == ["mul"] and list(tail.inputs) == ["sum", "late"] and tail.outputs == ("y",)
    both = extract(GRAPH, OPS, ["b", "c"], ["sum"], shapes)
    assert [n.op for n in both.nodes] == ["add"]


@pytest.mark.parametrize(
    ("sources", "targets", "said"),
    [
        ([], ["summ"], r"--to summ: 'g' has no such tensor \(did you mean 'sum'\?\); vkconv show lists all"),
        (["quantity"], [], r"--from quantity: 'g' has no such tensor; vkconv show lists all"),
        ([], ["add_sum"], r"--to add_sum: 'g' has no such tensor: that is a node, which makes sum; vkconv show"),
        (["w"], ["y"], r"--from w: it is a constant of 'g'; name a tensor that depends on an input"),
        ([], ["x"], r"--to x: it is an input of 'g', which no node makes"),
        (["a"], ["a"], r"'a' is both in --from and in --to: there is nothing between"),
        (["sum"], ["a"], r"--from sum: nothing leads from it to a; what is made of it is y"),
        (["b"], ["c"], r"--from b: nothing leads from it to c; what is made of it is sum"),
        (["a", "sum", "late"], ["y"], r"--from a: nothing leads .* to y, unless through another tensor of --from"),
        (["b"], ["sum"], r"sum needs the input 'x' too, by a way past b; add --from x, or the tensor where that way"),
        (["sum"], ["y"], r"y needs the input 'late' too, by a way past sum; add --from late"),
    ],
)
def test_what_is_not_there_or_not_connected_is_said(sources, targets, said):
    with pytest.raises(UsageError, match=said):
        extract(GRAPH, OPS, sources, targets, {"x": (2, 3), "late": (2, 4)})


@pytest.mark.parametrize("kind", ["vkc", "onnx"])
def test_a_part_is_a_file(tmp_path, kind):
    if kind == "onnx":
        pytest.importorskip("onnx")
    save_vkc(GRAPH, tmp_path / "whole.vkc")
    part = tmp_path / f"part.{kind}"
    ask = ("extract", tmp_path / "whole.vkc", "--from", "a", "--to", "sum", "-o", part)
    code, _, err = vkconv(*ask)
    assert code == 2 and "say how large the named dimensions are" in err
    code, _, err = vkconv("extract", tmp_path / "whole.vkc", "--from", "summ", "-o", part)  # before open dimensions
    assert code == 2 and "--from summ: 'g' has no such tensor (did you mean 'sum'?)" in err
    code, out, err = vkconv(*ask, "--dim", "n=5")
    assert code == 0 and f"wrote {part}: 3 nodes, 0 constants" in out, err
    graph = load_model(part)
    assert str(graph.inputs["a"]) == "5x4:f32" and graph.outputs == ("sum",)
    code, _, err = vkconv("extract", tmp_path / "whole.vkc", "-o", part)
    assert code == 2 and "takes a tensor where the part begins, --from, or where it ends, --to" in err
    code, _, err = vkconv("extract", tmp_path / "whole.vkc", "--to", "sum", "-o", tmp_path / "part.txt")
    assert code == 2 and "vkconv writes .vkc and .onnx files only" in err
