"""Files of the .vkc format, good and bad, for its tests."""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vkconv.core import DType, ModelError
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.graph.vkc import METADATA_KEY, SCHEMA, load_vkc


def small_graph() -> Graph:
    """A graph with every kind of attribute, a symbolic dimension, an absent operand and mixed dtypes."""
    attrs: dict[str, Any] = {
        "axis": -1,
        "alpha": 1.0,
        "hi": math.inf,
        "lo": -math.inf,
        "mode": "edge",
        "flag": True,
        "pads": (1, 0, 2, 0),
        "none": (),
        "scales": (1.0, 0.5, math.inf),
    }
    return Graph(
        inputs={"x": TensorSpec(("n", 3, 5), DType.F32), "k": TensorSpec((), DType.I64)},
        outputs=("y",),
        nodes=(
            Node("first", "add", ("x", "w"), ("t",)),
            Node("second", "thing", ("t", "", "i", "b"), ("y", ""), attrs),
        ),
        constants={
            "w": np.arange(15, dtype=np.float32).reshape(3, 5),
            "i": np.array(-7, np.int64),
            "b": np.array([True, False, True]),
            "empty": np.zeros((0, 4), np.float16),
        },
        name="small",
        metadata={"z": "last\n", "a": "first 字"},
    )


def build(header: Mapping[str, Any] | bytes, data: bytes = b"", graph: Mapping[str, Any] | str | None = None) -> bytes:
    """The bytes of a file, written by hand."""
    if isinstance(header, bytes):
        return struct.pack("<Q", len(header)) + header + data
    text = graph if isinstance(graph, str) else json.dumps(graph or minimal())
    full = json.dumps({"__metadata__": {METADATA_KEY: text}, **header}).encode()
    return struct.pack("<Q", len(full)) + full + data


def minimal(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "schema": SCHEMA,
        "name": "g",
        "inputs": [{"name": "x", "shape": [2, "n"], "dtype": "f32"}],
        "outputs": ["y"],
        "nodes": [{"name": "a", "op": "relu", "inputs": ["x"], "outputs": ["y"], "attrs": {}}],
        "metadata": {},
    }
    return base | changes


def tensor(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes


def refused(tmp_path: Path, data: bytes) -> str:
    path = tmp_path / "bad.vkc"
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        load_vkc(path)
    assert str(path) in str(caught.value)
    return str(caught.value)
