"""``vkconv pack``: the folder is whole and says what the plan says, for a device that is only a file."""

import numpy as np
import pytest
from cli_kit import vkconv

from vkconv.check.reference import reference_outputs
from vkconv.compiler import is_spirv
from vkconv.core import DType, InputError
from vkconv.graph import Graph, Node, TensorSpec, load_model
from vkconv.graph.vkc import save_vkc


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


def _lines(folder):
    lines = (folder / "plan.txt").read_text().splitlines()
    return lines[0], [line.split(" # ")[0].split() for line in lines[1:] if not line.startswith("#")]


@pytest.mark.parametrize("device", ["mali-g57", "raspberry-pi-5"])
def test_the_folder_is_whole(model, tmp_path, device):
    folder = tmp_path / "new" / "pack"
    code, out, err = vkconv("pack", model, folder, "--device", device, "-i", "x=1x3x9x7")
    assert (code, err) == (0, "")
    assert "input x = 1x3x9x7:randn:0" in out
    header, lines = _lines(folder)
    assert header == "vkconv-pack 1"
    assert lines[-1] == ["end"]
    sizes = [int(line[3]) for line in lines if line[0] == "buffer"]
    bindings = [int(line[3]) for line in lines if line[0] == "pipeline"]
    pushes = [int(line[4]) for line in lines if line[0] == "pipeline"]

    def inside(words):
        buffer, offset, nbytes = map(int, words)
        assert nbytes > 0
        assert offset + nbytes <= sizes[buffer]
        return nbytes

    for word, *rest in lines:
        if word == "pipeline":
            assert is_spirv((folder / rest[1]).read_bytes())
            assert len(rest[5:]) == int(rest[4]) >= 3
        elif word in ("input", "expected", "weights"):
            assert inside(rest[:3]) >= (folder / rest[3]).stat().st_size
        elif word == "dispatch":
            number, push, binds = int(rest[0]), rest[4], rest[5:]
            assert all(int(groups) > 0 for groups in rest[1:4])
            assert len(binds) == 3 * bindings[number]
            assert len(push) == 2 * pushes[number]
            for at in range(0, len(binds), 3):
                inside(binds[at : at + 3])
        elif word == "copy":
            assert inside(rest[:3]) == inside(rest[3:])
        else:
            assert word in ("needs", "buffer", "barrier", "load", "run", "end")


def test_what_is_expected_is_the_reference(model, tmp_path):
    x = np.random.default_rng(5).standard_normal((1, 3, 8, 9), np.float32)
    np.save(tmp_path / "x.npy", x)
    code, _, err = vkconv("pack", model, tmp_path / "p", "--device", "mali-g57", "-i", f"x=@{tmp_path / 'x.npy'}")
    assert (code, err) == (0, "")
    made = reference_outputs(load_model(model), {"x": x})
    assert (tmp_path / "p" / "input_0.bin").read_bytes() == x.tobytes()
    weight = load_model(model).constants["weight"].astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
    y = np.maximum(np.einsum("nchwrs,kcrs->nkhw", windows, weight), 0)
    assert y == pytest.approx(made["y"], rel=1e-6, abs=1e-6)
    assert y.sum((2, 3)) == pytest.approx(made["z z"].reshape(1, 5), rel=1e-6)
    assert (tmp_path / "p" / "expected_0.bin").read_bytes() == made["y"].tobytes()
    assert (tmp_path / "p" / "expected_1.bin").read_bytes() == made["z z"].tobytes()


def test_a_folder_is_written_anew(model, tmp_path):
    for shape in ("1x3x40x40", "1x3x4x4"):
        assert vkconv("pack", model, tmp_path / "p", "-d", "mali-g57", "-i", f"x={shape}")[0] == 0
    assert (tmp_path / "p" / "input_0.bin").stat().st_size == 4 * 3 * 4 * 4


def test_what_cannot_be_written(model, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = vkconv("pack", model, tmp_path / "file", "-d", "mali-g57", "-i", "x=1x3x4x4")
    assert code != 0
    assert str(tmp_path / "file") in err
    assert "Traceback" not in err


def test_a_reference_that_refuses_names_the_node():
    nodes = (Node("pick", "gather", ("x", "i"), ("y",), {"axis": 0}),)
    graph = Graph({"x": TensorSpec((2,)), "i": TensorSpec((1,), DType.I32)}, ("y",), nodes)
    with pytest.raises(InputError, match="pick"):
        reference_outputs(graph, {"x": np.zeros(2, np.float32), "i": np.array([7], np.int32)})
