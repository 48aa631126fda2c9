"""The command line without a device: what it parses, prints, refuses and leaves behind."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from cli_kit import vkconv
from required import required
from typer.models import OptionInfo

from vkconv.cli import app
from vkconv.core import UsageError
from vkconv.device import load_device
from vkconv.graph import Graph, Node, TensorSpec, load_model
from vkconv.graph.vkc import save_vkc

ROOT = Path(__file__).parents[2]
CALL = "conv2d:x=1x8x9x9,w=4x8x3x3,p=1"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("VKCONV_DEVICE", "VKCONV_ROUTE", "VKCONV_PARAM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VKCONV_MEASURED", "off")


@pytest.fixture
def model(tmp_path):
    """y = relu(conv2d(x, w) + c) with open height and width."""
    random = np.random.default_rng(3)
    graph = Graph(
        {"x": TensorSpec((1, 3, "h", "w"))},
        ("y",),
        (
            Node("conv", "conv2d", ("x", "weight"), ("a",), {"padding": (1, 1, 1, 1)}),
            Node("act", "relu", ("a",), ("y",)),
        ),
        {"weight": random.standard_normal((5, 3, 3, 3)).astype(np.float32)},
        name="small",
        metadata={"labels": "\n".join(f"label {i}" for i in range(100))},
    )
    path = tmp_path / "small.vkc"
    save_vkc(graph, path)
    return path


# ---- the application


def test_starts_without_heavy_imports():
    code = (
        "import sys, vkconv.cli\n"
        "heavy = ('kp', 'onnx', 'rich', 'safetensors', 'vkconv.backend.runtime', 'vkconv.session', 'vkconv.plan')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_python_m_vkconv_is_the_command():
    done = subprocess.run([sys.executable, "-m", "vkconv", "--version"], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout.split()[0]) == (0, "vkconv")


def test_every_option_and_argument_is_documented():
    for name, command in typer.main.get_command(app).commands.items():
        assert command.help, name
        for parameter in command.params:
            assert getattr(parameter, "help", None) or parameter.name == "help", f"{name} {parameter.name}"


def test_no_option_is_named_by_its_metavar():
    """typer 0.27 makes --DTYPE of an option ``dtype`` with that metavar, unless it is named."""
    commands = [
        *app.registered_commands,
        *(c for g in app.registered_groups for c in g.typer_instance.registered_commands),
    ]
    for command in commands:
        for name, parameter in inspect.signature(command.callback).parameters.items():
            if parameter.annotation is typer.Context:
                continue
            info = parameter.annotation.__metadata__[0]
            if isinstance(info, OptionInfo) and not (info.param_decls or isinstance(info.default, str)):
                assert (info.metavar or "").lower() != name, f"{command.name}: give typer.Option the name --{name}"


def test_unknown_command_suggests_one_and_exits_2():
    code, out, err = vkconv("expalin")
    assert (code, out) == (2, "")
    assert "expalin" in err and "explain" in err


# ---- commands


@pytest.mark.long
def test_ops_lists_every_op_and_tells_about_one():
    from vkconv.ops import OPS

    code, out, _ = vkconv("ops")
    assert code == 0
    assert {line.split()[0] for line in out.splitlines() if line} >= set(OPS)
    data = json.loads(vkconv("ops", "--json")[1])
    assert [op["op"] for op in data["ops"]] == list(OPS)
    code, out, _ = vkconv("ops", "conv2d")
    assert code == 0
    assert all(route.name in out and route.why in out for route in OPS["conv2d"].routes)
    code, out, err = vkconv("ops", "conv2")
    assert (code, out) == (2, "") and "conv2d" in err


@pytest.mark.parametrize("device", ["lavapipe", "mali-g715", "h200"])
def test_explain_call_has_its_route(device):
    data = json.loads(vkconv("explain", CALL, "--device", device, "--json")[1])
    assert data["schema"] == "vkconv.explain/1"
    taken = [row["route"] for row in data["routes"] if row["preferred"]]
    assert data["route"] == taken[0]
    forced = json.loads(vkconv("explain", CALL, "--device", device, "--route", "conv2d=direct", "--json")[1])
    assert (forced["route"], forced["by"]) == ("direct", "forced")


def test_explain_takes_routes_and_device_from_the_environment(monkeypatch):
    monkeypatch.setenv("VKCONV_DEVICE", "lavapipe")
    monkeypatch.setenv("VKCONV_ROUTE", "conv2d=direct")
    assert json.loads(vkconv("explain", CALL, "--json")[1])["by"] == "forced"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([CALL, "--route", "conv2d=depthwise"], "depthwise"),
        ([CALL, "--route", "conv2d=driect"], "did you mean 'direct'"),
        ([CALL, "--route", "add=broadcast"], "this call is conv2d"),
        ([CALL, "--shape", "x=1x2"], "for models"),
        (["conv2:x=1x2"], "did you mean 'conv2d'"),
        (["conv2d:x=1x8x9x9,w=4x7x3x3"], "8"),
        ([CALL, "--device", "mali-g716"], "did you mean 'mali-g715'"),
        ([CALL, "--device", "none.json"], "none.json"),
    ],
)
def test_explain_refuses(arguments, said, monkeypatch):
    def no_device_by_that_name(selector):
        raise UsageError(f"device {selector!r} fits no device here")

    monkeypatch.setattr("vkconv.backend.runtime.select_device", no_device_by_that_name)
    code, out, err = vkconv("explain", "--device", "lavapipe", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and said in err


def test_a_device_has_the_name_of_its_shipped_file_too(monkeypatch):
    from vkconv.backend import runtime

    here = [load_device("lavapipe"), load_device("h200")]
    monkeypatch.setattr(runtime, "list_devices", lambda: here)
    assert runtime.select_device("llvmpipe")[0] == runtime.select_device("LavaPipe")[0] == 0
    assert runtime.select_device("h200")[0] == 1
    with pytest.raises(UsageError, match="'mali-g57' fits no device here; this machine has device 0: llvmpipe"):
        runtime.select_device("mali-g57")


def test_explain_model(model, tmp_path):
    code, out, err = vkconv("explain", model, "--device", "lavapipe")
    assert code == 2 and "--shape x=1x3x1x1" in err
    code, out, _ = vkconv("explain", model, "--device", "lavapipe", "--shape", "x=1x3x17x19")
    assert code == 0 and "conv2d:x=1x3x17x19" in out
    command = ("explain", model, "--device", "lavapipe", "--shape", "x=1x3x17x19", "--json")
    data = json.loads(vkconv(*command)[1])
    assert data["nodes"] and all(node["route"] for node in data["nodes"])
    forced = json.loads(vkconv(*command, "--route", f"node:{data['nodes'][0]['node']}=direct")[1])
    assert (forced["nodes"][0]["route"], forced["nodes"][0]["by"]) == ("direct", "forced")


def test_a_broken_measured_table_is_a_warning(tmp_path, monkeypatch):
    before = vkconv("explain", CALL, "--device", "lavapipe")
    (tmp_path / "t.json").write_text("{")
    monkeypatch.setenv("VKCONV_MEASURED", str(tmp_path / "t.json"))
    code, out, err = vkconv("explain", CALL, "--device", "lavapipe")
    assert (code, out) == before[:2]
    assert err.startswith("warning: ignored: ") and str(tmp_path / "t.json") in err and "VKCONV_MEASURED=off" in err


def test_explain_model_says_once_why_a_route_exists(tmp_path):
    nodes = [Node(op, op, (before,), (op,)) for before, op in (("x", "tanh"), ("tanh", "exp"), ("exp", "sin"))]
    save_vkc(Graph({"x": TensorSpec((3, 5))}, ("tanh", "exp", "sin"), tuple(nodes)), tmp_path / "three.vkc")
    command = ("explain", tmp_path / "three.vkc", "--device", "lavapipe")
    (why,) = {node["why"] for node in json.loads(vkconv(*command, "--json")[1])["nodes"]}
    out = vkconv(*command)[1]
    assert out.count("elementwise") > out.count(why) == 3  # one row per op in the list of routes, none per node
    assert all(node.name in out for node in nodes)


def test_explain_takes_a_device_file(model, tmp_path):
    from vkconv.device import load_device

    file = tmp_path / "phone.json"
    load_device("mali-g715").save(file)
    shown = [vkconv("explain", CALL, "--device", device) for device in (file, "mali-g715")]
    assert shown[0] == shown[1]


def test_show_tells_all_and_shortens_metadata(model):
    code, out, _ = vkconv("show", model)
    assert code == 0
    for part in (
        "small: 2 nodes, 1 constant of 540 B",
        "input x: ",
        "output y",
        "conv2d",
        "padding=1x1x1x1",
        "label 1",
    ):
        assert part in out
    assert "label 99" not in out and max(map(len, out.splitlines())) < 200
    data = json.loads(vkconv("show", model, "--json")[1])
    assert data["inputs"]["x"] == {"shape": [1, 3, "h", "w"], "dtype": "f32"}
    assert data["metadata"]["labels"].endswith("label 99")


def test_show_memory_is_what_the_plan_takes(model):
    shapes = ("--shape", "x=1x3x9x8", "--device", "arc-a770")
    code, out, _ = vkconv("show", model, "--memory", *shapes)
    assert code == 0 and "activations and scratch, as planned" in out and "weights to load" in out
    data = json.loads(vkconv("show", model, "--memory", "--json", *shapes)[1])
    assert data["schema"] == "vkconv.memory/1" and data["over_lower_bound"] >= 1
    assert data["activations_bytes"] >= data["lower_bound_bytes"] > 0 and f" {data['lower_bound_bytes']} " in out
    code, _, err = vkconv("show", model, "--memory", "--device", "h200")
    assert code != 0 and "for example --shape x=1x3x" in err
    code, _, err = vkconv("show", model, *shapes)
    assert code != 0 and "write --memory too" in err


@pytest.mark.long
def test_show_prints_what_the_terminal_cannot(tmp_path):
    graph = Graph(
        {"x": TensorSpec((2,))},
        ("y",),
        (Node("r", "relu", ("x",), ("y",)),),
        metadata={"alphabet": "\u7597\xe9\U0001f600"},
    )
    save_vkc(graph, tmp_path / "m.vkc")
    command = [sys.executable, "-m", "vkconv", "show", str(tmp_path / "m.vkc")]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"alphabet: \u7597" in done.stdout
    for encoding in ("ascii", "latin-1"):
        env = {**os.environ, "PYTHONIOENCODING": encoding}
        done = subprocess.run([*command, "--json"], capture_output=True, cwd=ROOT, env=env)
        assert json.loads(done.stdout.decode("utf-8"))["metadata"]["alphabet"] == "\u7597\xe9\U0001f600"


def test_convert_writes_whole_files_or_none(model, tmp_path):
    target = tmp_path / "copy.vkc"
    code, out, err = vkconv("convert", model, target)
    assert (code, err) == (0, "")
    assert str(target) in out and "2 nodes" in out and "540 B" in out
    assert target.read_bytes() == model.read_bytes()

    before = sorted(tmp_path.iterdir())
    cut = tmp_path / "cut.vkc"
    cut.write_bytes(model.read_bytes()[:-1])
    blocked = model / "below-a-file.vkc"
    for source, to in (
        (cut, tmp_path / "b.vkc"),
        (tmp_path, tmp_path / "b.vkc"),
        (model, tmp_path / "b.pb"),
        (model, blocked),
    ):
        code, out, err = vkconv("convert", source, to)
        assert (code, out) == (2, ""), (source, to)
        assert err.startswith("error: ")
    assert sorted(tmp_path.iterdir()) == sorted([*before, cut])


def test_convert_reads_onnx(tmp_path):
    required("onnx")
    import onnx

    node = onnx.helper.make_node("Relu", ["x"], ["y"], name="r")
    values = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, "n"]) for n in "xy"]
    graph = onnx.helper.make_graph([node], "tiny", values[:1], values[1:])
    opsets = [onnx.helper.make_opsetid("", 13)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets), tmp_path / "tiny.onnx")
    assert vkconv("convert", tmp_path / "tiny.onnx", tmp_path / "tiny.vkc")[0] == 0
    assert [n.op for n in load_model(tmp_path / "tiny.vkc").nodes] == ["relu"]


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_run_refuses_a_timeout_that_is_none(model, seconds):
    code, _, err = vkconv("run", model, "--input", "1x3x8x8", "--timeout", seconds)
    assert code == 2 and "--timeout" in err


@pytest.mark.parametrize("order", [("--suite", "list", "--json"), ("--json", "--suite", "list")])
@pytest.mark.parametrize("command", ["bench", "tune"])
def test_suites_are_listed_as_json(command, order):
    code, out, _ = vkconv(command, *order)
    data = json.loads(out)
    assert (code, data["schema"]) == (0, "vkconv.suites/1")
    assert {"suite", "calls", "what it is"} == data["suites"][0].keys()


def saved_relu(folder):
    path = folder / "relu.vkc"
    save_vkc(Graph({"x": TensorSpec(("n", 4))}, ("y",), (Node("r", "relu", ("x",), ("y",)),), {}), path)
    return path


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--dim", "n=a"), "--dim n=a: 'a' is not a shape"),
        (("--dim=n",), "--dim 'n' is not NAME=SHAPE"),
        (("--dim", "n=2x3"), "--dim n=2x3: 'n' is a dimension, and takes one number"),
        (("--dim", "y=2x3"), "--dim y=2x3: the model has no input 'y'"),
        (("--shape", "x=2", "--dim", "n=2", "--dim", "n=2"), "--dim 'n=2' is there twice"),
        (("--shape", "y=2x3"), "--shape y=2x3: the model has no input 'y'"),
    ],
)
def test_shapes_and_dimensions_are_told_by_the_option_that_gave_them(given, said, tmp_path):
    code, out, err = vkconv("explain", saved_relu(tmp_path), "-d", "h200", *given)
    assert (code, out) == (2, "") and err.startswith(f"error: {said}")


def test_dimensions_where_shapes_are_of_no_use_are_told_as_dimensions(tmp_path):
    estimate = "estimate", "-d", "adreno-740"
    for words in (("explain",), ("check",), estimate, (*estimate, "--suite", "peers"), ("compile", "--with", "navi31")):
        call = [] if "peers" in words else ["relu:x=3"]
        assert "error: --dim is for models" in vkconv(*words, *call, "--dim", "n=1")[2]
    assert "error: --dim says how to plan" in vkconv("show", saved_relu(tmp_path), "--dim", "n=1")[2]


@pytest.mark.parametrize("option", ["route", "param", "dtype", "memory"])
def test_what_the_environment_gives_is_told_as_that(option, monkeypatch, tmp_path):
    variable = f"VKCONV_{option.upper()}"
    monkeypatch.setenv(variable, "foo")
    path = saved_relu(tmp_path)
    assert f"error: {variable} 'foo'" in vkconv("run", path)[2]
    assert f"error: --{option} 'bar'" in vkconv("run", path, f"--{option}", "bar")[2]


def test_help_lists_every_exit_code():
    assert "130 interrupted" in (text := " ".join(vkconv("--help")[1].split())) and "143 terminated" in text
