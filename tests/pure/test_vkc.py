"""The .vkc format: round trips, interchange with the safetensors library, bounds, and what cannot be saved."""

import json
import math
import os
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from vkc_kit import build, minimal, small_graph, tensor

from vkconv.core import Array, DType, GraphError, ModelError
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.graph.vkc import METADATA_KEY, load_vkc, save_vkc


def assert_equal(a: Graph, b: Graph) -> None:
    assert dict(a.inputs) == dict(b.inputs)
    assert list(a.inputs) == list(b.inputs)
    assert (a.outputs, a.nodes, a.name, dict(a.metadata)) == (b.outputs, b.nodes, b.name, dict(b.metadata))
    for one, two in zip(a.nodes, b.nodes, strict=True):
        for name, value in one.attrs.items():
            assert type(value) is type(two.attrs[name])
            if isinstance(value, tuple):
                assert [type(v) for v in value] == [type(v) for v in two.attrs[name]]  # type: ignore[union-attr]
    assert a.constants.keys() == b.constants.keys()
    for name, array in a.constants.items():
        other = b.constants[name]
        assert (array.shape, array.dtype) == (other.shape, other.dtype)
        assert array.tobytes() == other.tobytes()


def test_round_trip_keeps_everything(tmp_path: Path) -> None:
    save_vkc(small_graph(), tmp_path / "a.vkc")
    assert_equal(small_graph(), load_vkc(tmp_path / "a.vkc"))


def test_same_graph_same_bytes(tmp_path: Path) -> None:
    graph = small_graph()
    save_vkc(graph, tmp_path / "a.vkc")
    shuffled = graph.replace(
        constants=dict(reversed(list(graph.constants.items()))), metadata=dict(reversed(list(graph.metadata.items())))
    )
    save_vkc(shuffled, tmp_path / "b.vkc")
    save_vkc(load_vkc(tmp_path / "a.vkc"), tmp_path / "c.vkc")
    first = (tmp_path / "a.vkc").read_bytes()
    assert first == (tmp_path / "b.vkc").read_bytes() == (tmp_path / "c.vkc").read_bytes()


def test_nan_attribute_round_trips(tmp_path: Path) -> None:
    graph = Graph({"x": TensorSpec((1,))}, ("y",), (Node("n", "clip", ("x",), ("y",), {"a": math.nan}),))
    save_vkc(graph, tmp_path / "a.vkc")
    value = load_vkc(tmp_path / "a.vkc").nodes[0].attrs["a"]
    assert isinstance(value, float) and math.isnan(value)


def test_the_safetensors_library_reads_it(tmp_path: Path) -> None:
    save_vkc(small_graph(), tmp_path / "a.vkc")
    tensors = safetensors.numpy.load_file(tmp_path / "a.vkc")
    assert tensors.keys() == small_graph().constants.keys()
    assert np.array_equal(tensors["w"], small_graph().constants["w"])


def test_a_file_of_the_safetensors_library_is_read(tmp_path: Path) -> None:
    # uint8 first in the header's order of size last: the library's own placement, an odd metadata key beside ours.
    tensors: dict[str, Any] = {"c": np.arange(3, dtype=np.uint8), "w": np.array([[1.5, -2.5]], np.float32)}
    metadata = {METADATA_KEY: json.dumps(minimal()), "format": "np"}
    safetensors.numpy.save_file(tensors, tmp_path / "a.vkc", metadata=metadata)
    graph = load_vkc(tmp_path / "a.vkc")
    assert np.array_equal(graph.constants["w"], tensors["w"])
    assert np.array_equal(graph.constants["c"], tensors["c"])


def test_constants_are_read_only(tmp_path: Path) -> None:
    save_vkc(small_graph(), tmp_path / "a.vkc")
    w = load_vkc(tmp_path / "a.vkc").constants["w"]
    assert not w.flags.writeable and w.flags.aligned


def test_a_loaded_file_may_be_cut_short_or_go(tmp_path: Path) -> None:
    values = np.arange(1 << 20, dtype=np.float32)
    save_vkc(Graph({}, ("w",), (), {"w": values}), tmp_path / "a.vkc")
    w = load_vkc(tmp_path / "a.vkc").constants["w"]
    os.truncate(tmp_path / "a.vkc", 0)  # what is mapped would end the process here
    assert np.array_equal(w, values)


@pytest.mark.long
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'{"w":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' + b"%s}", "more than 65538 objects"),
        (b'{"' + b"w" * 5_000 + b'":1,"__metadata__":{}}', "key 'w{80}'... (5000 characters) is longer than the 4096"),
    ],
)
def test_tensors_and_keys_have_bounds(tmp_path: Path, data: bytes, says: str) -> None:
    more = b"".join(b',"w%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % i for i in range(500_000))
    text = data.replace(b"%s", more)
    (tmp_path / "a.vkc").write_bytes(struct.pack("<Q", len(text)) + text)
    tracemalloc.start()
    started = time.perf_counter()
    with pytest.raises(ModelError) as caught:
        load_vkc(tmp_path / "a.vkc")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert says.replace("w{80}", "w" * 80) in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert time.perf_counter() - started < 20 and most < 400 << 20, most


def test_no_message_is_as_long_as_what_it_is_about(tmp_path: Path) -> None:
    long = "x" * 1_000_000
    node = {"name": "n", "op": "relu", "inputs": ["x"], "outputs": ["y"], "attrs": {}}
    graphs = [
        minimal(schema=long),
        minimal(name=long),
        minimal(outputs=[long]),
        minimal(nodes=[node | {"op": long}]),
        minimal(nodes=[node | {"attrs": {long: 1}}]),
        minimal(nodes=[node | {"attrs": {"a": {"float": long}}}]),
    ]
    files = [build({}, b"", graph) for graph in graphs]
    files.append(build({"w": tensor(dtype=long)}, bytes(8)))
    for data in files:
        (tmp_path / "a.vkc").write_bytes(data)
        with pytest.raises(ModelError) as caught:
            load_vkc(tmp_path / "a.vkc")
        assert len(str(caught.value)) < 10_000


def test_a_writer_keeps_to_the_bounds(tmp_path: Path) -> None:
    one = np.zeros(1, np.float32)
    for graph, says in (
        (Graph({}, ("w" * 5_000,), (), {"w" * 5_000: one}), "at most 4096 characters"),
        (Graph({}, ("w0",), (), {f"w{i}": one for i in range(65_537)}), "65537 constants, the format holds 65536"),
        (Graph({}, ("w",), (), {"w": one}, metadata={"a": "b" * (33 << 20)}), "the format holds 33554432"),
        (Graph({"x" * 5_000: TensorSpec((1,))}, ("w",), (), {"w": one}), "cannot be saved"),
    ):
        with pytest.raises(GraphError, match=says):
            save_vkc(graph, tmp_path / "a.vkc")
    assert not list(tmp_path.iterdir())


def test_unaligned_tensors_are_read(tmp_path: Path) -> None:
    header = {
        "b": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "w": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
    }
    (tmp_path / "a.vkc").write_bytes(build(header, b"\x07" + struct.pack("<2f", 1.5, -3.0)))
    w = load_vkc(tmp_path / "a.vkc").constants["w"]
    assert w.tolist() == [1.5, -3.0] and w.flags.aligned


def test_arrays_of_any_layout_are_saved_by_value(tmp_path: Path) -> None:
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    arrays: dict[str, Array] = {
        "t": base.T,
        "s": base[::2, ::-1],
        "big": base.astype(">f4"),
        "0d": np.array(3, np.float32),
    }
    save_vkc(Graph({}, ("t",), (), arrays), tmp_path / "a.vkc")
    loaded = load_vkc(tmp_path / "a.vkc").constants
    for name, array in arrays.items():
        assert loaded[name].shape == array.shape and np.array_equal(loaded[name], array)


def test_every_bit_of_a_half_round_trips(tmp_path: Path) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    arrays: dict[str, Array] = {str(d): bits.view(d.numpy) for d in (DType.F16, DType.BF16)}
    save_vkc(Graph({"x": TensorSpec((2,), DType.BF16)}, ("x",), (), arrays), tmp_path / "a.vkc")
    loaded = load_vkc(tmp_path / "a.vkc")
    assert loaded.inputs["x"].dtype is DType.BF16
    for name, array in arrays.items():
        assert loaded.constants[name].dtype == array.dtype and loaded.constants[name].tobytes() == bits.tobytes()


_dtypes = st.sampled_from([d.numpy for d in DType if d is not DType.BF16])
_numbers = st.integers(-(2**63), 2**63 - 1)
_attrs = st.one_of(
    st.booleans(),
    _numbers,
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(_numbers).map(tuple),
    st.lists(st.floats(allow_nan=False), min_size=1).map(tuple),
)


@pytest.mark.long
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    array=_dtypes.flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=8, min_side=0, max_side=2))),
    attrs=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), _attrs, max_size=4),
    shape=st.lists(st.one_of(st.integers(0, 2**63 - 1), st.from_regex(r"[a-z]{1,3}", fullmatch=True)), max_size=8),
    name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda s: s not in ("c", "y")),
)
def test_any_graph_round_trips(
    tmp_path: Path, array: Array, attrs: dict[str, Any], shape: list[int | str], name: str
) -> None:
    node = Node(name, "op", (name, "c"), ("y",), attrs)
    graph = Graph({name: TensorSpec(tuple(shape), DType.U8)}, ("y",), (node,), {"c": array}, name)
    save_vkc(graph, tmp_path / "a.vkc")
    assert_equal(graph, load_vkc(tmp_path / "a.vkc"))


def test_the_example_of_the_specification(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    example = text[text.index('{"schema"') : text.index("- A dimension")]
    header = {"w": {"dtype": "F32", "shape": [8, 3], "data_offsets": [0, 96]}}
    (tmp_path / "a.vkc").write_bytes(build(header, f32_bytes(24), example))
    graph = load_vkc(tmp_path / "a.vkc")
    assert graph.nodes[0].attrs == {"stride": (2, 2), "act_a": 0.1}
    assert graph.inputs["x"] == TensorSpec(("n", 3, 224, 224))
    assert graph.constants["w"][7].tolist() == [21.0, 22.0, 23.0]


def f32_bytes(count: int) -> bytes:
    return np.arange(count, dtype=np.float32).tobytes()


@pytest.mark.parametrize(
    ("constants", "text"),
    [
        ({"__metadata__": np.zeros(1, np.float32)}, "'__metadata__'"),
        ({"w": np.zeros((1,) * 9, np.float32)}, "rank 9, the format holds 8"),
        ({"w": np.zeros(1, np.float64)}, "'w': numpy dtype float64"),
    ],
)
def test_what_cannot_be_saved(tmp_path: Path, constants: dict[str, Array], text: str) -> None:
    with pytest.raises(GraphError, match=text):
        save_vkc(Graph({"x": TensorSpec((1,))}, ("x",), (), constants), tmp_path / "a.vkc")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [2**63, None, object(), np.int64(3), "\ud800", {"a": 1}])
def test_attributes_that_cannot_be_saved(tmp_path: Path, value: Any) -> None:
    graph = Graph({"x": TensorSpec((1,))}, ("y",), (Node("n", "relu", ("x",), ("y",), {"k": value}),))
    with pytest.raises(GraphError, match="cannot be saved"):
        save_vkc(graph, tmp_path / "a.vkc")
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ModelError, match="cannot be written"):
        save_vkc(small_graph(), tmp_path / "file" / "a.vkc")
