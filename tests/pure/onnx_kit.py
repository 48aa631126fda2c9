"""What the tests of the ONNX importer share: small models, and what becomes of them."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from required import required

required("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from vkconv.core import Array, ModelError, UnsupportedError  # noqa: E402
from vkconv.graph import Graph  # noqa: E402
from vkconv.graph.onnx import load_onnx, proto, worker  # noqa: E402

I64_MAX = 2**63 - 1
WINDOW = {"stride": (1, 1), "dilation": (1, 1), "padding": (0, 0, 0, 0), "auto_pad": "explicit"}


def f32(*shape: int) -> Array:
    return np.arange(1, 1 + math.prod(shape), dtype=np.float32).reshape(shape)


def i64(*values: int) -> Array:
    return np.array(values, np.int64)


def make(
    nodes: list[Any],
    *,
    inputs: dict[str, Any] | None = None,
    outputs: tuple[str, ...] = ("y",),
    constants: dict[str, Array] | None = None,
    opset: int = 13,
    **fields: Any,
) -> Any:
    """A model; ``inputs`` maps a name to a shape (float32) or to (elem_type, shape)."""
    infos = []
    for name, given in (inputs if inputs is not None else {"x": [2, 3, 8, 8]}).items():
        elem_type, shape = given if isinstance(given, tuple) else (TensorProto.FLOAT, given)
        infos.append(helper.make_tensor_value_info(name, elem_type, shape))
    graph = helper.make_graph(
        nodes,
        "g",
        infos,
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], **fields)


@pytest.fixture
def tasks_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has onnx do its tasks in this process: half a second less for each, and models that ONNX aborts on end it."""
    monkeypatch.setattr(proto, "run_apart", lambda task, model: worker.TASKS[task](model))


def load(tmp_path: Path, model: Any) -> Graph:
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return load_onnx(path)


def steps(graph: Graph) -> list[tuple[str, tuple[str, ...], dict[str, Any]]]:
    return [(node.op, node.inputs, dict(node.attrs)) for node in graph.nodes]


def refused(tmp_path: Path, model: Any, error: type[ModelError] = UnsupportedError) -> str:
    with pytest.raises(error) as caught:
        load(tmp_path, model)
    assert type(caught.value) is error
    assert str(tmp_path / "model.onnx") in str(caught.value)
    return str(caught.value)


def sliced(shape: list[int], *before: Any, **constants: Array) -> Any:
    """A model whose rule asks for the rank behind a Slice along the first dimension."""
    nodes = [
        *before,
        helper.make_node("Slice", ["p" if before else "x", "b", "e", "a"], ["s"]),
        helper.make_node("GlobalAveragePool", ["s"], ["y"]),
    ]
    return make(nodes, inputs={"x": shape}, constants={"b": i64(0), "e": i64(1), "a": i64(0), **constants})
