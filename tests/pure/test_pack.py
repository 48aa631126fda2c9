"""``vkconv pack``: the folder is whole and says what the plan says, for a device that is only a file."""

import numpy as np
import pytest
from cli_kit import vkconv
from pack_kit import Pack

from vkconv.check.reference import reference_outputs
from vkconv.core import DType, InputError, ShaderError
from vkconv.graph import Graph, Node, TensorSpec, load_model
from vkconv.graph.vkc import save_vkc
from vkconv.spirv import capabilities, is_spirv

pytestmark = [pytest.mark.long, pytest.mark.share(1)]


@pytest.fixture
def model(tmp_path):
    random = np.random.default_rng(3)
    nodes = (
        Node("conv # 1\n", "conv2d", ("x", "weight"), ("a",), {"padding": (1, 1, 1, 1)}),
        Node("act", "relu", ("a",), ("y",)),
        Node("sum", "reduce", ("y",), ("z z",), {"op": "sum", "axes": (2, 3)}),
    )
    weight = random.standard_normal((5, 3, 3, 3), np.float32)
    path = tmp_path / "m.vkc"
    save_vkc(Graph({"x": TensorSpec((1, 3, "h", "w"))}, ("y", "z z"), nodes, {"weight": weight}), path)
    return path


def _pack(*words):
    code, out, err = vkconv("pack", *words)
    assert code == 0, err
    return Pack(words[-1]), out


def _words(pack, plan):
    return [line.split(" # ")[0].split() for line in pack.lines(plan)[1:] if not line.startswith("#")]


@pytest.mark.parametrize("only", ["m.onnx", "relu:x=8"])
def test_what_is_to_be_packed_is_not_taken_for_the_folder(only):
    assert vkconv("pack", only) == (2, "", f"error: name the folder to write: vkconv pack {only} DIR\n")


@pytest.mark.parametrize("device", ["mali-g57", "raspberry-pi-5"])
def test_the_folder_is_whole(model, tmp_path, device):
    pack, out = _pack(model, "--device", device, "-i", "x=1x3x9x7", tmp_path / "new" / "pack")
    assert "input x = 1x3x9x7:randn:0" in out
    assert pack.lines("index.txt")[0] == "vkconv-packs 2"
    plans = [f"files/{path.name}" for path in pack.path.glob("files/*.plan")]
    assert len(plans) == 1 + 1 + 2  # where values share memory, and the nodes: relu is fused into conv2d
    for plan in plans:
        assert pack.lines(plan)[0] == "vkconv-pack 2"
        assert _words(pack, plan)[-1] == ["end"]
        _is_whole(pack, _words(pack, plan))


def _is_whole(pack, lines):
    sizes = [int(line[3]) for line in lines if line[0] == "buffer"]
    bindings = [int(line[3]) for line in lines if line[0] == "pipeline"]
    pushes = [int(line[4]) for line in lines if line[0] == "pipeline"]
    outputs = [line[4:] for line in lines if line[0] == "output"]

    def inside(words):
        buffer, offset, nbytes = map(int, words)
        assert nbytes > 0
        assert offset + nbytes <= sizes[buffer]
        return nbytes

    for word, *rest in lines:
        if word == "pipeline":
            assert is_spirv((pack.path / rest[1]).read_bytes())
            assert len(rest[5:]) == int(rest[4]) >= 3
        elif word in ("input", "weights"):
            assert inside(rest[:3]) >= (pack.path / rest[3]).stat().st_size
        elif word in ("output", "value"):
            inside(rest[:3])
        elif word == "check":
            dims = np.prod([int(side) for side in outputs[int(rest[0])][1].split("x")])
            assert len(pack.array(rest[1], np.float64)) == dims
        elif word == "dispatch":
            number, push, binds = int(rest[0]), rest[4], rest[5:]
            assert all(int(groups) > 0 for groups in rest[1:4])
            assert len(binds) == 3 * bindings[number]
            assert len(push.replace("-", "")) == 2 * pushes[number]
            for at in range(0, len(binds), 3):
                inside(binds[at : at + 3])
        elif word == "copy":
            assert inside(rest[:3]) == inside(rest[3:])
        else:
            assert word in (
                *("label", "shared", "repeats", "needs", "capability", "buffer", "node", "barrier"),
                *("load", "run", "end"),
            )


def test_what_is_expected_is_the_reference(model, tmp_path):
    x = np.random.default_rng(5).standard_normal((1, 3, 8, 9), np.float32)
    np.save(tmp_path / "x.npy", x)
    pack, _ = _pack(model, "--device", "mali-g57", "-i", f"x=@{tmp_path / 'x.npy'}", tmp_path / "p")
    made = reference_outputs(load_model(model), {"x": x})
    weight = load_model(model).constants["weight"].astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
    y = np.maximum(np.einsum("nchwrs,kcrs->nkhw", windows, weight), 0)
    assert y == pytest.approx(made["y"], rel=1e-6, abs=1e-6)
    (whole,) = pack.plans()
    lines = pack.lines(whole)
    (given,) = [line for line in lines if line.startswith("input ")]
    assert pack.array(given.split()[4], np.float32).tobytes() == x.tobytes()
    checks = [line.split() for line in lines if line.startswith("check ")]
    assert [check[3] for check in checks] == ["shown", "shown"]
    assert pack.array(checks[0][2], np.float64) == pytest.approx(y.ravel(), rel=1e-6, abs=1e-6)
    conv, total = [line for line in lines if line.startswith("node ")]
    assert conv.endswith("# conv # 1?")
    for node, wanted in ((conv, y), (total, y.sum((2, 3)))):
        (check,) = [line.split() for line in pack.lines(node.split()[1]) if line.startswith("check ")]
        assert pack.array(check[2], np.float64) == pytest.approx(wanted.ravel(), rel=1e-6, abs=1e-6)
        allowed = pack.array(check[4], np.float64) if check[3] == "each" else np.array([float(check[4])])
        assert (allowed > 0).all() and (allowed < 1e-2 * np.abs(wanted).max()).all()


def test_equal_files_are_there_once_and_all_are_named_by_what_they_hold(tmp_path):
    import hashlib

    pack, _ = _pack("matmul:a=9x8,b=8x7", "--route", "all", "-d", "mali-g57", tmp_path / "p")
    plans = pack.plans()
    assert len(plans) > 1
    checks = {next(line for line in pack.lines(plan) if line.startswith("check ")).split()[2] for plan in plans}
    assert len(checks) == 1  # one reference for all routes
    for path in pack.path.glob("files/*"):
        assert path.name.startswith(hashlib.sha256(path.read_bytes()).hexdigest()[:32])


def test_a_folder_is_written_anew_and_a_strange_one_left_alone(model, tmp_path):
    for shape in ("1x3x40x40", "1x3x4x4"):
        pack, _ = _pack(model, "-d", "mali-g57", "-i", f"x={shape}", tmp_path / "p")
    (given,) = [line for line in pack.lines(pack.plans()[0]) if line.startswith("input ")]
    assert (pack.path / given.split()[4]).stat().st_size == 4 * 3 * 4 * 4
    code, _, err = vkconv("pack", model, "-d", "mali-g57", "-i", "x=1x3x4x4", tmp_path)
    assert code == 2
    assert "no part of a pack: name a new folder" in err
    assert model.exists()


def test_suites_sweeps_and_all_ops(tmp_path):
    suite = tmp_path / "s.txt"
    suite.write_text("2x matmul:a=4x8,b=8x4\nrelu:x=5\n")
    pack, _ = _pack("--suite", suite, "-d", "mali-g57", tmp_path / "a")
    assert len(pack.plans()) == 2
    swept, _ = _pack("relu:x=5", "--sweep", "local", "-d", "mali-g57", tmp_path / "b")
    assert len(swept.plans()) > 1
    every, out = _pack("--all-ops", "--op", "relu", "--dtype", "f16", "--short", "-d", "mali-g57", tmp_path / "c")
    labels = [line.partition(" # ")[2] for line in every.lines("index.txt") if line.startswith("pack ")]
    assert any(label.endswith("f16, specials") for label in labels)
    assert "checks;" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "nothing to pack"),
        (("--all-ops", "relu:x=4"), "--all-ops goes with"),
        (("relu:x=4", "--short"), "go with --all-ops"),
        (("relu:x=4", "--half-sums"), "are for models"),
        (("relu:x=4", "--dtype", "auto"), "say which types"),
        (("frobnicate:x=4",), "frobnicate"),
        (("relu:x=0",), "nothing to pack"),
        (("relu:x=4", "--route", "winogard"), "there is no route"),
    ],
)
def test_what_makes_no_pack(tmp_path, words, says):
    code, _, err = vkconv("pack", *words, "-d", "mali-g57", tmp_path / "p")
    assert code == 2
    assert says in err
    assert "Traceback" not in err
    assert not (tmp_path / "p" / "index.txt").exists()


def test_inputs_beyond_the_phone_are_refused_before_they_are_drawn(tmp_path, monkeypatch):
    path, drawn = tmp_path / "open.vkc", []
    save_vkc(Graph({"x": TensorSpec(("n", 4))}, ("y",), (Node("r", "relu", ("x",), ("y",)),), {}), path)
    monkeypatch.setattr("vkconv.check.inputs.filled", lambda *given: drawn.append(given))
    code, _, err = vkconv("pack", path, "-d", "mali-g57", "-i", "x=1000000000x4", tmp_path / "p")
    assert (code, drawn) == (2, []) and "input 'x': 1000000000x4:f32 takes 14.9 GiB" in err


def test_what_cannot_be_written(model, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = vkconv("pack", model, "-d", "mali-g57", "-i", "x=1x3x4x4", tmp_path / "file")
    assert code != 0
    assert str(tmp_path / "file") in err
    assert "Traceback" not in err


def test_capabilities_of_a_module():
    header = b"\x03\x02\x23\x07" + bytes(16)
    words = [(2 << 16 | 17), 1, (2 << 16 | 17), 63, (2 << 16 | 17), 9999]
    code = header + b"".join(word.to_bytes(4, "little") for word in words)
    assert capabilities(code, "m") == ["Shader", "GroupNonUniformArithmetic", "Capability9999"]
    with pytest.raises(ShaderError, match="begins no instruction"):
        capabilities(header + bytes(4), "m")


def test_a_reference_that_refuses_names_the_node():
    nodes = (Node("pick", "gather", ("x", "i"), ("y",), {"axis": 0}),)
    graph = Graph({"x": TensorSpec((2,)), "i": TensorSpec((1,), DType.I32)}, ("y",), nodes)
    with pytest.raises(InputError, match="pick"):
        reference_outputs(graph, {"x": np.zeros(2, np.float32), "i": np.array([7], np.int32)})
