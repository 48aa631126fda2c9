"""ONNX files that are damaged, contradict themselves or keep data outside, and what onnx itself dies of."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from required import required

required("onnx")
import onnx  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx_kit import f32, i64, load, make, refused, sliced, steps  # noqa: E402

from vkconv.core import ModelError, UsageError  # noqa: E402
from vkconv.graph.onnx import load_onnx, proto, worker  # noqa: E402


def test_tensors_that_do_not_hold_what_they_say(tmp_path: Path) -> None:
    model = make([helper.make_node("Add", ["x", "w"], ["y"])], constants={"w": f32(4)})
    model.graph.initializer[0].dims[0] = 5
    assert "initializer 'w' of shape (5,) does not hold what it declares" in refused(tmp_path, model, ModelError)
    model.graph.initializer[0].dims[0] = -4
    assert "negative dimension" in refused(tmp_path, model, ModelError)
    model.graph.initializer.append(numpy_helper.from_array(f32(1), "w"))
    model.graph.initializer[0].dims[0] = 4
    assert "two initializers are named 'w'" in refused(tmp_path, model, ModelError)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(ModelError, match="no such file"):
        load_onnx(path)
    with pytest.raises(ModelError, match="directory"):
        load_onnx(tmp_path)
    for data, text in (
        (b"", "the file is empty"),
        (b"hello, this is no protobuf", "not an ONNX model|no ONNX graph"),
        (onnx.ModelProto(ir_version=8).SerializeToString(), "no ONNX graph"),
    ):
        path.write_bytes(data)
        with pytest.raises(ModelError, match=text):
            load_onnx(path)
    model = make([helper.make_node("Relu", ["x"], ["y"])])
    model.graph.input.append(helper.make_tensor_value_info("", TensorProto.FLOAT, [1]))
    assert "empty name" in refused(tmp_path, model, ModelError)
    del model.opset_import[:]
    assert "which opset" in refused(tmp_path, model, ModelError)


def damageable() -> bytes:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Clip", ["c", "lo", "hi"], ["k"]),
        helper.make_node("Reshape", ["k", "shape"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"], axis=-1),
    ]
    zero, six = (np.array(v, np.float32) for v in (0, 6))
    constants = {"w": f32(2, 3, 3, 3), "lo": zero, "hi": six, "shape": i64(0, -1)}
    return bytes(make(nodes, inputs={"x": ["n", 3, 8, 8]}, constants=constants).SerializeToString())


def test_truncated_models_are_model_errors(tmp_path: Path) -> None:
    whole = damageable()
    path = tmp_path / "model.onnx"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError):
            load_onnx(path)


def test_damaged_models_are_model_errors_or_other_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A process for each would take minutes; with this seed ONNX itself lives on.
    monkeypatch.setattr(proto, "run_apart", lambda task, model: worker.TASKS[task](model))
    whole = damageable()
    path = tmp_path / "model.onnx"
    random = np.random.default_rng(7)
    outcomes = Counter[str]()
    for _ in range(600):
        data = bytearray(whole)
        for at in random.integers(0, len(whole), random.integers(1, 4)):
            data[at] = random.integers(256)
        path.write_bytes(data)
        try:
            load_onnx(path)
            outcomes["read"] += 1
        except ModelError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 40 and len(outcomes) == 2, outcomes


def external(tmp_path: Path, **entries: str) -> Any:
    """A model whose one weight lies in weights.bin at byte 8."""
    w = f32(4)
    (tmp_path / "weights.bin").write_bytes(b"\xff" * 8 + w.tobytes())
    model = make([helper.make_node("Add", ["x", "w"], ["y"])], constants={"w": w})
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in ({"location": "weights.bin", "offset": "8", "length": "16"} | entries).items():
        tensor.external_data.add(key=key, value=value)
    return model


def test_external_data(tmp_path: Path) -> None:
    assert load(tmp_path, external(tmp_path)).constants["w"].tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({"location": "../weights.bin"}, "outside the model's folder"),
        ({"location": "/etc/hostname"}, "outside the model's folder"),
        ({"location": ""}, "outside the model's folder"),
        ({"location": "w" * 300}, "cannot be read (File name too long)"),
        ({"location": "absent.bin"}, "absent.bin: no such file; check the path; it belongs beside the model"),
        ({"offset": "12"}, "bytes 12 to 28 wanted"),
        ({"offset": "-4"}, "bytes -4 to 12 wanted"),
        ({"length": "15"}, "15 external bytes declared, shape (4,) of f32 needs 16"),
        ({"offset": "many"}, "not a number"),
    ],
)
def test_bad_external_data(tmp_path: Path, entries: dict[str, str], text: str) -> None:
    assert text in refused(tmp_path, external(tmp_path, **entries), ModelError)


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    model = external(tmp_path)
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "weights.bin").symlink_to(tmp_path / "weights.bin")
    (inner / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="outside the model's folder"):
        load_onnx(inner / "model.onnx")


def test_local_functions_are_inlined(tmp_path: Path) -> None:
    model = make([helper.make_node("Twice", ["x"], ["y"], domain="mine")])
    model.opset_import.append(helper.make_opsetid("mine", 1))
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    model.functions.append(helper.make_function("mine", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 13)]))
    assert steps(load(tmp_path, model)) == [("add", ("x", "x"), {})]


def test_without_the_onnx_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UsageError, match="pip install"):
        load_onnx(tmp_path / "model.onnx")


def test_a_model_that_onnx_aborts_on_is_refused(tmp_path: Path) -> None:
    crops_all = sliced([1, 3, 8, 8], helper.make_node("Pad", ["x", "pads"], ["p"]), pads=i64(-3, 0, 0, 0, 0, 0, 0, 0))
    text = refused(tmp_path, crops_all, ModelError)
    assert "onnx broke down when asked to infer it (SIGABRT); the file may be damaged" in text


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import time; time.sleep(60)", r"onnx did not finish to infer it within 0.5 s"),
        ("raise SystemError('lost')", r"onnx broke down when asked to infer it \(exit code 1, SystemError: lost\)"),
        ("import os; os.kill(os.getpid(), 11)", r"\(SIGSEGV\)"),
    ],
    ids=["hangs", "raises", "crashes"],
)
def test_whatever_becomes_of_the_process_that_infers_it_is_a_model_error(
    program: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "worker.py").write_text(program)
    monkeypatch.setattr(worker, "__file__", str(tmp_path / "worker.py"))
    monkeypatch.setattr(proto, "_TIMEOUT_S", 0.5)
    with pytest.raises(ModelError, match=message):
        load(tmp_path, sliced([1, 3, 8, 8]))


def test_functions_that_call_themselves_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proto, "_TIMEOUT_S", 2)
    model = make([helper.make_node("f", ["x"], ["y"], domain="own")])
    model.opset_import.append(helper.make_opsetid("own", 1))
    body = [helper.make_node("f", ["x"], ["y"], domain="own")]
    imports = [helper.make_opsetid("", 13), helper.make_opsetid("own", 1)]
    model.functions.append(helper.make_function("own", "f", ["x"], ["y"], body, imports))
    assert "local functions cannot be inlined" in refused(tmp_path, model, ModelError)
