"""What ``vkconv pack`` writes, played by the program in examples/device_pack, which has no vkconv in it."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cli_kit import vkconv
from required import unavailable

from vkconv.backend.runtime import select_device
from vkconv.core import DType
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.graph.vkc import save_vkc

pytestmark = pytest.mark.gpu

SOURCE = Path(__file__).parents[2] / "examples" / "device_pack" / "player.cpp"


@pytest.fixture(scope="module")
def player(tmp_path_factory):
    compiler = shutil.which("c++")
    if compiler is None or not Path("/usr/include/vulkan/vulkan.h").exists():
        unavailable("c++ and libvulkan-dev build the player")
    program = tmp_path_factory.mktemp("player") / "player"
    flags = ["-O1", "-std=c++17", "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror"]
    flags += shlex.split(os.environ.get("VKCONV_TEST_CXXFLAGS", ""))  # tools/sanitize.sh has some
    subprocess.run([compiler, *flags, SOURCE, "-lvulkan", "-o", program], check=True, timeout=300)

    def play(*words):
        done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, timeout=300, check=False)
        return done.returncode, done.stdout, done.stderr

    return play


@pytest.fixture
def folder(tmp_path, device):
    """A network with weights, inputs and outputs of floats, integers and bools."""
    random = np.random.default_rng(1)
    nodes = (
        Node("conv # 1", "conv2d", ("x", "w"), ("a",), {"padding": (1, 1, 1, 1)}),
        Node("add", "add", ("a", "b"), ("c",)),
        Node("whole", "reshape", ("p",), ("h",), {"shape": (5, 6)}),
        Node("some", "cast", ("p",), ("i",), {"to": "bool"}),
        Node("sum", "reduce", ("c",), ("s",), {"op": "sum", "axes": (2, 3)}),
    )
    constants = {"w": random.standard_normal((6, 3, 3, 3), np.float32)}
    inputs = {"x": TensorSpec((1, 3, 20, 13)), "b": TensorSpec((1, 6, 1, 1)), "p": TensorSpec((3, 10), DType.I32)}
    save_vkc(Graph(inputs, ("h", "i", "s"), nodes, constants), tmp_path / "m.vkc")
    return tmp_path / "pack"


def _pack(folder, device):
    code, _, err = vkconv("pack", folder.parent / "m.vkc", folder, "--device", device)
    assert (code, err) == (0, "")


# The alignments of all these are multiples of that of the device here.
@pytest.mark.parametrize("planned_for", ["auto", "mali-g57", "raspberry-pi-5", "powervr-bxm-8-256"])
def test_played_it_gives_what_is_expected(player, folder, planned_for):
    _pack(folder, planned_for)
    code, out, err = player(folder, 5)
    assert (code, err) == (0, "")
    assert out.count(": near, ") == 3
    assert "h 5x6: near, largest error 0," in out
    assert "i 3x10: near, largest error 0, largest expected magnitude 1\n" in out
    assert "0 of 5 runs differ from the first" in out
    sums = np.fromfile(folder / "got_2.bin", np.float32)
    assert sums == pytest.approx(np.fromfile(folder / "expected_2.bin", np.float32), rel=1e-4, abs=1e-3)


def test_a_pipeline_asks_for_its_subgroup_size(player, folder, device):
    """That of the device, which it may always ask for."""
    _pack(folder, "auto")
    text = (folder / "plan.txt").read_text()
    size = select_device(device)[1].subgroup_size
    (folder / "plan.txt").write_text(text.replace("\npipeline 1", f"\nsubgroup 0 {size}\npipeline 1", 1))
    code, out, err = player(folder, 2)
    assert (code, err) == (0, "") and out.count(": near, ") == 3


def test_a_wrong_output_is_told(player, folder):
    _pack(folder, "auto")
    expected = np.fromfile(folder / "expected_2.bin", np.float32)
    expected[4] += 2 * np.abs(expected).max()
    expected.tofile(folder / "expected_2.bin")
    code, out, _ = player(folder)
    assert code == 1
    assert "s 1x6x1x1: FAR OFF" in out
    assert "element 4 is" in out
    expected[2] = np.nan
    expected.tofile(folder / "expected_2.bin")
    assert "1 elements where only one is finite" in player(folder)[1]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("needs maxPushConstantsSize ", "needs maxPushConstantsSize 9", "needs maxPushConstantsSize"),
        ("needs maxPushConstantsSize ", "needs somethingElse ", "needs somethingElse"),
        ("vkconv-pack 1", "vkconv-pack 2", "no plan of version 1"),
        ("\nend\n", "\n", "ends early"),
        ("\nrun\n", "\nrun\njump 1\n", "unknown line: jump 1"),
        ("\nrun\n", "\nrun\ncopy 0 0 4 0 99999999 4\n", "outside of its buffer"),
        ("\nrun\n", "\nrun\ndispatch 99 1 1 1 -\n", "no pipeline 99"),
        ("\npipeline 1", "\nsubgroup 0 4096\npipeline 1", "asks for subgroups of 4096; the device has"),
        ("\npipeline 0", "\nsubgroup 0 8\npipeline 0", "no pipeline 0"),
        ("\nload\n", "\npipeline 9 x.spv 2147483648 0 0\nload\ndispatch 9 1 1 1 -\n", "bad line: pipeline 9"),
        ("\nload\n", "\npipeline 9 x.spv -1 0 0\nload\n", "bad line: pipeline 9"),
        ("\nload\n", "\npipeline 9 x.spv 1 4294967292 0\nload\n", "bad line: pipeline 9"),
        ("\nload\n", "\npipeline 9 x.spv 1 0 4294967295\nload\n", "bad line: pipeline 9"),
        ("\nload\n", "\npipeline 9 x.spv 255 0 0\nload\n", "the plan has 255 bindings, and this device takes"),
        ("\nload\n", "\npipeline 9 x.spv 1 4096 0\nload\n", "bytes of push constants, and this device takes"),
        ("\nrun\n", "\nrun\ndispatch 0 4294967295 1 1 {}\n", "workgroups on an axis, and this device takes 65535"),
    ],
)
def test_a_folder_that_cannot_be_played(player, folder, old, new, says):
    _pack(folder, "auto")
    text = (folder / "plan.txt").read_text()
    (first,) = [line for line in text.splitlines() if line.startswith("dispatch 0 ")][:1]
    new = new.format(" ".join(first.split(" # ")[0].split()[5:]))  # its push constants and regions
    (folder / "plan.txt").write_text(text.replace(old, new, 1))
    code, _, err = player(folder)
    assert code == 2
    assert says in err


def test_what_is_not_there(player, tmp_path):
    assert player(tmp_path)[0] == 2
    assert player()[0] == 2
