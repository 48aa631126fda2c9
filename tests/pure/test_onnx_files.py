"""ONNX files that are damaged, contradict themselves or keep data outside, and what onnx itself dies of."""

import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from required import required

required("onnx")
import onnx  # noqa: E402
from cli_kit import vkconv  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx_kit import f32, i64, load, make, refused, sliced, steps  # noqa: E402

from vkconv.core import GraphError, ModelError, UsageError, VkconvWarning  # noqa: E402
from vkconv.graph import TensorSpec, load_model  # noqa: E402
from vkconv.graph.onnx import load_onnx, proto, worker  # noqa: E402
from vkconv.ops import OPS  # noqa: E402
from vkconv.plan.bound import bind  # noqa: E402


def test_tensors_that_do_not_hold_what_they_say(tmp_path: Path) -> None:
    model = make([helper.make_node("Add", ["x", "w"], ["y"])], constants={"w": f32(4)})
    model.graph.initializer[0].dims[0] = 5
    assert "initializer 'w' of shape (5,) does not hold what it declares" in refused(tmp_path, model, ModelError)
    model.graph.initializer[0].dims[0] = -4
    assert "negative dimension" in refused(tmp_path, model, ModelError)
    model.graph.initializer.append(numpy_helper.from_array(f32(1), "w"))
    model.graph.initializer[0].dims[0] = 4
    assert "two initializers are named 'w'" in refused(tmp_path, model, ModelError)
    model.graph.initializer.pop()
    model.graph.initializer[0].float_data.extend([9, 9, 9, 9])
    text = refused(tmp_path, model, ModelError)
    assert "initializer 'w' has its elements twice, as raw_data and as float_data; ONNX wants one" in text


def test_files_that_are_no_models(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(ModelError, match="no such file"):
        load_onnx(path)
    with pytest.raises(ModelError, match="directory"):
        load_onnx(tmp_path)
    for data, text in (
        (b"", "it is empty"),
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


@pytest.mark.long
def test_truncated_models_are_model_errors(tmp_path: Path) -> None:
    whole = damageable()
    path = tmp_path / "model.onnx"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError):
            load_onnx(path)


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize("limit_kib", [4_000_000, 1_000_000])
def test_a_limit_of_the_address_space_is_kept_to_not_raised(tmp_path: Path, limit_kib: int) -> None:
    (tmp_path / "a.onnx").write_bytes(sliced([1, 3, 8, 8]).SerializeToString())
    code = f"from vkconv.graph import load_model; print(len(load_model({str(tmp_path / 'a.onnx')!r}).nodes))"
    shell = f"ulimit -v {limit_kib}; exec {shlex.quote(sys.executable)} -c {shlex.quote(code)}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 0


def test_functions_that_call_themselves_are_refused(tmp_path: Path) -> None:
    model = make([helper.make_node("f", ["x"], ["y"], domain="own")])
    model.opset_import.append(helper.make_opsetid("own", 1))
    body = [helper.make_node("f", ["x"], ["y"], domain="own")]
    imports = [helper.make_opsetid("", 13), helper.make_opsetid("own", 1)]
    model.functions.append(helper.make_function("own", "f", ["x"], ["y"], body, imports))
    text = refused(tmp_path, model, ModelError)
    assert "local functions cannot be inlined: the function 'f' calls itself" in text


# ---- what a model says of itself


def test_an_opset_that_came_later_is_taken_on_request(tmp_path: Path) -> None:
    model = make([helper.make_node("Relu", ["x"], ["y"])], opset=999)
    text = refused(tmp_path, model, ModelError)
    assert "uses opset 999, and vkconv knows those up to" in text and "--newer-opset" in text
    with pytest.warns(VkconvWarning, match="opset 999 is taken for opset"):
        graph = load_onnx(tmp_path / "model.onnx", newer_opset=True)
    assert (steps(graph), graph.metadata["onnx.opset"]) == ([("relu", ("x",), {})], "999")
    code, _, err = vkconv("convert", tmp_path / "model.onnx", tmp_path / "a.vkc")
    assert code == 2 and "--newer-opset" in err
    code, _, err = vkconv("convert", "--newer-opset", tmp_path / "model.onnx", tmp_path / "a.vkc")
    assert code == 0 and "warning: opset 999" in err
    assert steps(load_model(tmp_path / "a.vkc")) == steps(graph)


def test_an_opset_newer_than_the_installed_onnx_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx.defs, "onnx_opset_version", lambda: 12)
    text = refused(tmp_path, make([helper.make_node("Relu", ["x"], ["y"])], opset=13), ModelError)
    assert "uses opset 13, and onnx" in text and "which is installed, knows those up to 12" in text


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_two_opsets_of_one_domain_are_refused(tmp_path: Path, domain: str) -> None:
    model = make([helper.make_node("Relu", ["x"], ["y"])], opset=13)
    model.opset_import.append(helper.make_opsetid(domain, 13))
    assert steps(load(tmp_path, model))  # the same, twice
    model.opset_import[1].version = 7
    assert "uses the opsets 13, 7 of one domain" in refused(tmp_path, model, ModelError)


@pytest.mark.parametrize(
    ("dtype", "dims", "problem"),
    [
        (TensorProto.FLOAT, [2, 3], ""),
        (TensorProto.FLOAT, ["a", "b"], ""),
        (TensorProto.FLOAT, None, ""),
        (TensorProto.UNDEFINED, [2, 3], ""),
        (TensorProto.INT64, [2, 3], "is declared as 2x3:i64, and its nodes make 2x3:f32"),
        (TensorProto.DOUBLE, None, "is declared as any shape:double, and its nodes make 2x3:f32"),
        (TensorProto.FLOAT, [2, 4], "is declared as 2x4:f32, and its nodes make 2x3:f32"),
        (TensorProto.FLOAT, [2, "b", 1], "is declared as [2, ?, 1]:f32, and its nodes make 2x3:f32"),
    ],
)
def test_a_declared_output_is_what_its_nodes_make(
    tmp_path: Path, dtype: int, dims: list[int | str] | None, problem: str
) -> None:
    model = make([helper.make_node("Relu", ["x"], ["y"])], inputs={"x": [2, 3]})
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", dtype, dims))
    graph = load(tmp_path, model)
    if not problem:
        assert bind(graph, OPS).specs["y"] == TensorSpec((2, 3))
        return
    with pytest.raises(GraphError, match=re.escape(f"output 'y' {problem}")):
        bind(graph, OPS)


def test_a_declared_size_does_not_bind_what_the_inputs_leave_open(tmp_path: Path) -> None:
    model = make([helper.make_node("Relu", ["x"], ["y"])], inputs={"x": ["n", 3]})
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3]))
    graph = load(tmp_path, model)
    assert bind(graph, OPS, {"x": (4, 3)}).specs["y"] == TensorSpec((4, 3))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [1]))
    with pytest.raises(GraphError, match="is declared as 1:f32, and its nodes make 4x3:f32"):
        bind(load(tmp_path, model), OPS, {"x": (4, 3)})


def test_external_data_is_no_other_files_hard_link(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    model = external(folder)
    assert load(folder, model)
    os.link(folder / "weights.bin", folder / "same.bin")  # two names in one folder
    assert load(folder, model)
    os.link(folder / "weights.bin", tmp_path / "secret")
    assert "weights.bin has 1 other names (hard links) outside its folder; copy it" in refused(
        folder, model, ModelError
    )


def test_nodes_without_a_name_have_their_number(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["y"])]
    assert "Abs node number 1 writes 'y', which Relu node number 0 writes too" in refused(
        tmp_path, make(nodes), ModelError
    )
