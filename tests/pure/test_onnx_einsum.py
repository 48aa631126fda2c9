"""Einsum through the importer, against numpy's."""

import numpy as np
import pytest
from required import required

required("onnx")
import onnx  # noqa: E402
from graph_kit import evaluate  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402

from vkconv.core import UnsupportedError  # noqa: E402
from vkconv.graph.onnx import load_onnx_proto  # noqa: E402
from vkconv.ops import OPS  # noqa: E402
from vkconv.plan.bound import bind  # noqa: E402


def model(equation: str, dims: list[list[str | int]], elem_type: int = TensorProto.FLOAT) -> onnx.ModelProto:
    names = [f"x{i}" for i in range(len(dims))]
    graph = helper.make_graph(
        [helper.make_node("Einsum", names, ["y"], name="e", equation=equation)],
        "g",
        [helper.make_tensor_value_info(name, elem_type, d) for name, d in zip(names, dims, strict=True)],
        [helper.make_tensor_value_info("y", elem_type, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(3, 5), (5, 7)]),
        ("ij,kj", [(3, 5), (7, 5)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 5, 7), (2, 3, 4, 7)]),
        ("bqhd,bkhd->bhqk", [(2, 5, 3, 7), (2, 4, 3, 7)]),
        ("...ij, ...jk -> ...ik", [(2, 1, 3, 5), (4, 5, 7)]),
        ("bcij,jkil->bckl", [(2, 3, 5, 7), (7, 4, 5, 6)]),
        ("i,j->ji", [(3,), (5,)]),
        ("ij,ij->", [(3, 5), (3, 5)]),
        ("ijk,k->j", [(2, 3, 5), (5,)]),
        ("ij,jk,kl->li", [(2, 3), (3, 5), (5, 7)]),
        ("bii->ib", [(3, 5, 5)]),
        ("i...i", [(5, 2, 5)]),
        ("...i->...", [(2, 3, 5)]),
        ("ba", [(3, 5)]),
        ("abc,abd->cd", [(2, 3, 5), (2, 3, 7)]),
    ],
)
def test_agrees_with_numpy_with_open_dimensions_too(equation: str, shapes: list[tuple[int, ...]]) -> None:
    rng = np.random.default_rng(2)
    arrays = {f"x{i}": rng.standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)}
    wanted = np.einsum(equation, *(array.astype(np.float64) for array in arrays.values()))
    opened: list[list[str | int]] = [[f"d{i}_{j}" for j in range(len(shape))] for i, shape in enumerate(shapes)]
    for dims in ([list(shape) for shape in shapes], opened):
        graph = load_onnx_proto(model(equation, dims))
        (y,) = evaluate(bind(graph, OPS, {name: array.shape for name, array in arrays.items()}), arrays)
        np.testing.assert_allclose(y, wanted, rtol=1e-12, atol=1e-12)


def test_integers_are_multiplied_exactly() -> None:
    a, b = np.array([[1 << 20, 3]], np.int64), np.array([[1 << 20], [5]], np.int64)
    graph = load_onnx_proto(model("ij,jk->ik", [[1, 2], [2, 1]], TensorProto.INT64))
    (y,) = evaluate(bind(graph, OPS, {"x0": a.shape, "x1": b.shape}), {"x0": a, "x1": b})
    assert y.tolist() == [[(1 << 40) + 15]]


@pytest.mark.parametrize(
    ("equation", "dims", "words"),
    [
        ("ij,jk->ik", [[3, 5]], "has 2 operands, the node 1"),
        ("ijk->i", [[3, 5]], "calls 3 dimensions 'ijk' of an operand of rank 2"),
        ("ij->iz", [[3, 5]], "an output label twice, or one that no operand has"),
        ("i1->i", [[3, 5]], "not made of letters and one ellipsis"),
    ],
)
def test_equations_that_mean_nothing_are_named(equation: str, dims: list[list[str | int]], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        load_onnx_proto(model(equation, dims))
