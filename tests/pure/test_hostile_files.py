"""Files made to do harm: what they would cost, where they would reach, what they would break."""

import json
import os
import struct
import time

import numpy as np
import onnx
import pytest
from graph_kit import f32
from onnx import TensorProto, helper, numpy_helper

from vkconv.bench.files import read_result
from vkconv.bench.suites import read_suite
from vkconv.cli.inputs import make_inputs
from vkconv.cli.options import parse_params
from vkconv.core import MAX_NODES, InputError, ModelError, UsageError, VkconvError, did_you_mean
from vkconv.device import load_device
from vkconv.graph import TensorSpec, load_model
from vkconv.graph.vkc import METADATA_KEY, load_vkc
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.measured import read_table

pytestmark = pytest.mark.long

GRAPH = {
    "schema": "vkconv.graph/1",
    "name": "g",
    "inputs": [{"name": "x", "shape": [2], "dtype": "f32"}],
    "outputs": ["y"],
    "nodes": [{"name": "n", "op": "relu", "inputs": ["x"], "outputs": ["y"], "attrs": {}}],
    "metadata": {},
}


def vkc(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def graph_file(path, graph=GRAPH, **tensors):
    return vkc(
        path, {"__metadata__": {METADATA_KEY: graph if isinstance(graph, str) else json.dumps(graph)}, **tensors}
    )


def model(nodes, inits=(), shape=(4,)):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        list(inits),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])


def saved(path, made):
    path.write_bytes(made.SerializeToString())
    return path


def weighted(dims, dtype=TensorProto.FLOAT, raw=None, **external):
    """A model with one weight of these dimensions: its bytes, or where they lie."""
    tensor = onnx.TensorProto(name="w", data_type=dtype, dims=dims)
    if raw is not None:
        tensor.raw_data = raw
    else:
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in external.items():
            tensor.external_data.add(key=key, value=value)
    return model([helper.make_node("Add", ["x", "w"], ["y"])], [tensor])


# ---- time: nothing that a file holds is looked at once for each other thing it holds


def within(seconds, use, error=None, match=""):
    started = time.perf_counter()
    if error is None:
        use()
    else:
        with pytest.raises(error, match=match):
            use()
    assert time.perf_counter() - started < seconds


def test_a_key_that_comes_twice_among_many(tmp_path):
    keys = b",".join(b'"%d":1' % i for i in range(60_000))
    path = vkc(tmp_path / "a.vkc", b"{" + keys + b',"59999":2}')
    within(2, lambda: load_vkc(path), ModelError, "the key '59999' occurs twice")


def test_a_name_that_nothing_is_like_among_long_and_many_ones():
    within(6, lambda: did_you_mean("q" * 50, (f"{'q' * 40}{i}" for i in range(1_000_000))))
    within(1, lambda: did_you_mean("q" * 100_000, ["q" * 100_001] * 100))
    assert did_you_mean("rellu", ["q" * 100_000, "relu"]) == " (did you mean 'relu'?)"


def test_nodes_that_all_have_one_name(tmp_path):
    nodes = [helper.make_node("Relu", ["x"], [f"y{i or ''}"], name="same") for i in range(MAX_NODES)]
    path = saved(tmp_path / "a.onnx", model(nodes))
    within(10, lambda: load_model(path))


def test_too_many_nodes(tmp_path):
    node = GRAPH["nodes"][0]
    nodes = [node | {"name": f"n{i}", "outputs": [f"y{i or ''}"]} for i in range(MAX_NODES + 1)]
    path = graph_file(tmp_path / "a.vkc", GRAPH | {"nodes": nodes})
    within(5, lambda: load_vkc(path), ModelError, f"{MAX_NODES}")
    made = model([helper.make_node("Relu", ["x"], [f"y{i or ''}"]) for i in range(MAX_NODES + 1)])
    within(5, lambda: load_model(saved(tmp_path / "a.onnx", made)), ModelError, f"vkconv takes {MAX_NODES}")


@pytest.mark.parametrize("depth", [100, 100_000])
def test_nesting(tmp_path, depth):
    nested = json.dumps(GRAPH)[:-1] + ',"deep":' + "[" * depth + "]" * depth + "}"
    within(5, lambda: load_vkc(graph_file(tmp_path / "a.vkc", nested)), ModelError, "JSON|unknown field")
    (tmp_path / "device.json").write_text("[" * depth)
    within(5, lambda: load_device(tmp_path / "device.json"), ModelError, "not JSON")


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("a.vkc", load_vkc),
        ("a.onnx", load_model),
        ("a.json", load_device),
        ("a.json", read_table),
        ("a.json", read_result),
        ("a.txt", lambda path: read_suite(str(path))),
        ("a.npy", lambda path: make_inputs({"x": TensorSpec((2,))}, [f"x=@{path}"])),
    ],
    ids=["vkc", "onnx", "device", "measured", "result", "suite", "array"],
)
def test_what_is_no_file_is_not_waited_for(tmp_path, name, read):
    os.mkfifo(tmp_path / name)
    within(2, lambda: read(tmp_path / name), VkconvError, "directory or device")


# ---- shapes that no array can have


@pytest.mark.parametrize("shape", [[0, 2**62, 2**62], [2**63 - 1, 0], [0, 2**61]])
def test_empty_tensors_of_impossible_shapes(tmp_path, shape):
    tensor = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}
    with pytest.raises(ModelError, match="cannot have the shape"):
        load_vkc(graph_file(tmp_path / "a.vkc", w=tensor))
    (tmp_path / "w.bin").write_bytes(b"")
    for made in (weighted(shape, raw=b""), weighted(shape, location="w.bin", length="0")):
        with pytest.raises(ModelError, match="cannot have the shape"):
            load_model(saved(tmp_path / "a.onnx", made))
    with pytest.raises(UsageError, match="cannot be"):
        parse_call(f"relu:x={'x'.join(map(str, shape))}", OPS)


def test_more_dimensions_than_arrays_have(tmp_path):
    (tmp_path / "w.bin").write_bytes(bytes(16))
    for made in (weighted([1] * 40, raw=bytes(4)), weighted([1] * 40, location="w.bin", length="4")):
        with pytest.raises(ModelError, match="40 dimensions; at most 32"):
            load_model(saved(tmp_path / "a.onnx", made))
    with pytest.raises(ModelError, match="33 dimensions; at most 32"):
        load_model(saved(tmp_path / "a.onnx", model([helper.make_node("Relu", ["x"], ["y"])], shape=[1] * 33)))
    with pytest.raises(UsageError, match="at most 32 dimensions"):
        parse_call(f"relu:x={'x'.join('1' * 33)}", OPS)


@pytest.mark.parametrize("number", ["9" * 5000, str(2**64), f"-{2**64}"])
def test_numbers_of_more_bits_than_any_machine_has(number):
    for text in (f"softmax:x=2x3,axis={number}", f"relu:x={number.lstrip('-')}", f"tile:x=2,repeats={number}"):
        with pytest.raises(VkconvError):
            parse_call(text, OPS)
    with pytest.raises(UsageError, match="is not KEY=NAME:VALUE"):
        parse_params([f"conv2d=local:{'9' * 5000}"])


# ---- external data


@pytest.mark.parametrize("location", ["loop", "w\0", "inner/../../w.bin", "/etc/hostname", "fifo", "."])
def test_external_data_stays_in_the_folder_and_is_a_file(tmp_path, location):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(16))
    (folder / "loop").symlink_to(folder / "loop")
    os.mkfifo(folder / "fifo")
    made = saved(folder / "a.onnx", weighted([4], location=location, length="16"))
    within(2, lambda: load_model(made), ModelError, "names no file|outside the model's folder|directory or device")


def test_bools_are_0_or_1(tmp_path):
    (tmp_path / "w.bin").write_bytes(b"\0\1\2\3")
    for made in (weighted([4], TensorProto.BOOL, b"\0\1\2\3"), weighted([4], TensorProto.BOOL, location="w.bin")):
        with pytest.raises(ModelError, match="bytes other than 0 and 1"):
            load_model(saved(tmp_path / "a.onnx", made))


def test_nan_infinity_and_nothing_are_legal_weights(tmp_path):
    values = np.array([np.nan, np.inf, -np.inf, 0], np.float32)
    path = saved(
        tmp_path / "a.onnx", model([helper.make_node("Add", ["x", "w"], ["y"])], [numpy_helper.from_array(values, "w")])
    )
    np.testing.assert_array_equal(load_model(path).constants["w"], values)
    empty = numpy_helper.from_array(f32(0, 4), "w")
    assert (
        load_model(saved(path, model([helper.make_node("Add", ["x", "w"], ["y"])], [empty]))).constants["w"].size == 0
    )


# ---- names


def test_half_a_character_is_no_name(tmp_path):
    text = json.dumps(GRAPH | {"name": "\ud800"})
    with pytest.raises(ModelError, match="surrogates"):
        load_vkc(graph_file(tmp_path / "a.vkc", text))
    whole = json.dumps(GRAPH | {"name": "\U0001f600"})  # escaped in two halves
    assert load_vkc(graph_file(tmp_path / "a.vkc", whole)).name == "\U0001f600"


# ---- lists of calls


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.txt", 'conv -n "1'),
        ("s.txt", f"conv -n {'9' * 5000} -c 3 -H 4 -W 4 -k 3 -y 3 -x 3"),
        ("s.csv", f"n,{'c' * 200_000}"),
        ("s.txt", "relu:x=" + "x".join(["1"] * 100_000)),
    ],
)
def test_lines_that_no_suite_has(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match="the suite was not run"):
        read_suite(str(tmp_path / name))


# ---- arrays


def test_an_array_file_that_promises_more_than_it_holds(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((2, 3), np.float32))
    data = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(data.replace(b"(2, 3), }       ", b"(2, 4000000000)}"))
    with pytest.raises(InputError, match=r"no \.npy file"):
        make_inputs({"x": TensorSpec((2, 3))}, [f"x=@{tmp_path / 'a.npy'}"])
