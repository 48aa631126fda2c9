"""What ``vkconv pack`` writes, played by native/player, which has no vkconv in it."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cli_kit import vkconv
from pack_kit import Pack, player_for_tests
from required import unavailable

from vkconv.backend.runtime import select_device
from vkconv.core import DType
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.graph.vkc import save_vkc

pytestmark = pytest.mark.gpu
VERSIONS = Path(__file__).parents[1] / "pure" / "data" / "versions"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    compiler = shutil.which("c++")
    if compiler is None or not Path("/usr/include/vulkan/vulkan_core.h").exists():
        unavailable("c++ and libvulkan-dev build the player")
    return player_for_tests(compiler, tmp_path_factory.mktemp("player"))


@pytest.fixture(scope="module")
def player(program):
    def play(*words):
        done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, timeout=300, check=False)
        return done.returncode, done.stdout, done.stderr

    return play


def results(text):
    """The header and the results of ``--json``."""
    header, *packs = map(json.loads, text.splitlines())
    return header, packs


@pytest.fixture
def model(tmp_path):
    """A network with weights, inputs and outputs of floats, integers and bools, and a depthwise convolution."""
    random = np.random.default_rng(1)
    nodes = (
        Node("conv # 1", "conv2d", ("x", "w"), ("a",), {"padding": (1, 1, 1, 1)}),
        Node("depthwise", "conv2d", ("a", "d"), ("e",), {"padding": (1, 1, 1, 1), "groups": 6}),
        Node("add", "add", ("e", "b"), ("c",)),
        Node("whole", "reshape", ("p",), ("h",), {"shape": (5, 6)}),
        Node("some", "cast", ("p",), ("i",), {"to": "bool"}),
        Node("sum", "reduce", ("c",), ("s",), {"op": "sum", "axes": (2, 3)}),
    )
    constants = {
        "w": random.standard_normal((6, 3, 3, 3), np.float32),
        "d": random.standard_normal((6, 1, 3, 3), np.float32),
    }
    inputs = {"x": TensorSpec((2, 3, 20, 13)), "b": TensorSpec((1, 6, 1, 1)), "p": TensorSpec((3, 10), DType.I32)}
    save_vkc(Graph(inputs, ("h", "i", "s"), nodes, constants), tmp_path / "m.vkc")
    return tmp_path / "m.vkc"


def pack(*words):
    """A folder by ``vkconv pack``, the last word."""
    code, _, err = vkconv("pack", *words)
    assert code == 0, err
    return Pack(Path(words[-1]))


# The alignments of all these are multiples of that of the device here.
@pytest.mark.parametrize("planned_for", ["auto", "mali-g57", "raspberry-pi-5", "powervr-bxm-8-256"])
@pytest.mark.share(2)
def test_a_model_is_right_node_by_node(player, model, tmp_path, planned_for):
    pack(model, "--device", planned_for, tmp_path / "p")
    code, out, err = player(tmp_path / "p", "--json", "--repeat", 3)
    assert (code, err) == (0, "")
    header, (result,) = results(out)
    assert header["schema"] == "vkconv.played/1"
    assert [node["node"] for node in result["nodes"]] == ["conv # 1", "depthwise", "add", "some", "sum"]
    for node in result["nodes"]:
        assert node["cause"] == ""
        (alone,), (run,) = node["alone"], node["run"]
        assert alone["max_rel"] < 1e-5
        assert run["sha256"] and run["wrong"] == 0
    assert (result["runs"], result["distinct"], result["shared"]) == (3, 1, [])


def test_a_decoder_with_full_caches_is_right_node_by_node(player, tmp_path):
    """A token behind seven rows, which is written in place."""
    decoder_kit = pytest.importorskip("decoder_kit", reason="onnx is not installed")
    (tmp_path / "m.onnx").write_bytes(decoder_kit.decoder(layers=1).SerializeToString())
    given = ("--bound", f"{decoder_kit.PAST}=8", "--dim", "sequence_length=1", "-i", "attention_mask=ones")
    pack(tmp_path / "m.onnx", *given, tmp_path / "p")
    code, out, err = player(tmp_path / "p", "--json", "--repeat", 3)
    assert (code, err) == (0, "")
    (result,) = results(out)[1]
    assert {"present.0.key", "present.0.value", "logits"} < {node["node"] for node in result["nodes"]}
    assert all(node["cause"] == "" for node in result["nodes"])
    assert (result["runs"], result["distinct"]) == (3, 1)
    code, said, err = vkconv("check", tmp_path / "m.onnx", *given)
    assert code == 0 and "nodes right, alone and in the run" in said, err


def test_types_and_sums_of_f16(player, model, tmp_path):
    pack(model, "--dtype", "f16", "--half-sums", "--device", "mali-g57", tmp_path / "p")
    code, out, err = player(tmp_path / "p", "--json")
    if code == 2:
        assert "the SPIR-V capability" in results(out)[1][0]["why"]
        return
    assert (code, err) == (0, "")


def test_a_fault_in_the_last_column_of_one_node_is_named(player, model, tmp_path):
    """1 % in the last column of a depthwise convolution: far too little to be seen in the sums at the end."""
    folder = pack(model, tmp_path / "p")
    (whole,) = folder.plans()
    depthwise = next(line for line in folder.lines(whole) if line.startswith("node ") and line.endswith("# depthwise"))
    alone = depthwise.split()[1]
    check = next(line for line in folder.lines(alone) if line.startswith("check 0 "))
    expected = folder.array(check.split()[2], np.float64).reshape(2, 6, 20, 13)
    expected[1, 3, :, 12] *= 1.01
    faulty = folder.put(expected.tobytes(), "bin")
    folder.replace(alone, check, check.replace(check.split()[2], faulty))
    code, out, _ = player(tmp_path / "p", "--json")
    assert code == 1
    (result,) = results(out)[1]
    assert result["status"] == "FAILED"
    assert result["why"].startswith("depthwise (conv2d:")
    assert "wrong alone, from reference inputs: y[1, 3, " in result["why"]
    assert re.search(r"\d+ of 3120 elements are wrong: column 12, the last, of 13, ", result["why"])
    assert "channel 3 of 6, image 1, the last, of 2" in result["why"]
    assert [node["cause"] for node in result["nodes"]] == ["", "alone", "", "", ""]


def test_what_is_right_alone_and_wrong_in_the_run_is_told_apart(player, model, tmp_path):
    """The model without its barriers' order: here, with one copy too many, which overwrites what a node left."""
    folder = pack(model, tmp_path / "p")
    (whole,) = folder.plans()
    lines = folder.lines(whole)
    values = [line.split() for line in lines if line.startswith("value ")]
    e, c = (next(words for words in values if words[-1] == name) for name in ("e", "c"))
    last = next(line for line in lines if line.startswith("dispatch ") and line.endswith("# add"))
    copy = f"barrier\ncopy {c[1]} {c[2]} 16 {e[1]} {int(e[2]) + 64} 16 # stray"
    folder.replace(whole, last, f"{last}\n{copy}")
    code, out, _ = player(tmp_path / "p", "--json")
    assert code == 1
    (result,) = results(out)[1]
    assert [node["cause"] for node in result["nodes"]] == ["", "in the run", "in the run", "", ""]
    assert "4 of 3120 elements are wrong" in result["why"]


@pytest.mark.parametrize("folder", sorted(VERSIONS.glob("*/pack")), ids=lambda folder: folder.parent.name)
def test_a_pack_of_an_earlier_version_is_played(player, folder):
    code, out, err = player(folder, "--json")
    assert (code, err) == (0, "")
    assert [result["status"] for result in results(out)[1]] == ["ok"]


def test_calls_on_all_routes_with_their_times(player, tmp_path):
    call = "matmul:a=33x65,b=65x17"
    pack(call, "conv2d:x=2x6x9x13,w=6x1x3x3,p=1,groups=6", "--route", "all", tmp_path / "p")
    words = ("--bench", "--min-time", 0.001, "--runs", 3, "--json", "--results", tmp_path / "r.jsonl")
    code, out, err = player(tmp_path / "p", *words)
    assert (code, err) == (0, "")
    assert (tmp_path / "r.jsonl").read_text() == out
    _, packs = results(out)
    assert len(packs) > 6
    for result in packs:
        times = result["times"]
        assert 0 < times["us_min"] <= times["us_median"] <= times["us_p90"] <= times["us_p99"]
        assert times["runs"] >= 3
        assert len(times["dispatches"]) >= 1
        assert all(d["us"] >= 0 for d in times["dispatches"])
        assert times["us_compile"] > 0


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_calls_of_16_bit_floats(player, tmp_path, dtype):
    pack("matmul:a=33x65,b=65x17", "relu:x=2x3x5x7", "--dtype", dtype, tmp_path / "p")
    code, out, err = player(tmp_path / "p", "--json")
    assert (code, err) == (0, "")
    assert [result["outputs"][0]["elements"] for result in results(out)[1]] == [33 * 17, 210]


def test_checks_of_ops_with_what_is_not_finite(player, tmp_path):
    pack("--all-ops", "--op", "clip", "--op", "relu", "--short", "--dtype", "f32", tmp_path / "p")
    code, out, err = player(tmp_path / "p", "--json")
    assert (code, err) == (0, "")
    _, packs = results(out)
    assert any(result["label"].endswith("specials") and result["outputs"][0]["nan"] for result in packs)


def test_a_wrong_output_is_kept_and_a_capability_refused(player, tmp_path):
    folder = pack("matmul:a=5x8,b=8x7", "relu:x=3", tmp_path / "p")
    matmul, relu = folder.plans()
    check = next(line for line in folder.lines(matmul) if line.startswith("check 0 "))
    expected = folder.array(check.split()[2], np.float64)
    expected[9] = np.nan
    folder.replace(matmul, check, check.replace(check.split()[2], folder.put(expected.tobytes(), "bin")))
    folder.replace(relu, "capability Shader", "capability Shader\ncapability CooperativeMatrixKHR")
    code, out, _ = player(tmp_path / "p", "--got", tmp_path / "got")
    assert code == 1
    assert "y[1, 2] is" in out and "1 of 35 elements are wrong" in out
    assert "the plan needs the SPIR-V capability CooperativeMatrixKHR, which this player does not know" in out
    assert "2 packs: 0 ok, 1 wrong, 1 refused" in out
    (kept,) = (tmp_path / "got").iterdir()
    assert kept.stat().st_size == 4 * 35
    assert player(tmp_path / "p", "--packs", "1")[0] == 2


def test_subgroups_are_listed_as_a_capability(tmp_path):
    folder = pack("reduce:x=64x512,axes=1,keepdims=0,op=sum", "--route", "all", tmp_path / "p")
    found = {line for plan in folder.plans() for line in folder.lines(plan) if line.startswith("capability ")}
    assert "capability GroupNonUniformArithmetic" in found


def test_a_pipeline_asks_for_its_subgroup_size(player, tmp_path, device):
    """That of the device, which it may always ask for."""
    folder = pack("relu:x=300", tmp_path / "p")
    size = select_device(device)[1].subgroup_size
    (plan,) = folder.plans()
    line = next(line for line in folder.lines(plan) if line.startswith("pipeline 0 "))
    changed = folder.replace(plan, line, f"{line}\nsubgroup 0 {size}")
    assert player(tmp_path / "p")[0] == 0
    folder.replace(changed, f"subgroup 0 {size}", "subgroup 0 4096")
    assert "asks for subgroups of 4096; the device has" in player(tmp_path / "p")[1]


def test_a_time_limit_ends_one_pack_and_the_next_is_played(player, tmp_path):
    pack("matmul:a=640x640,b=640x640", "relu:x=3", tmp_path / "p")
    code, out, _ = player(tmp_path / "p", "--run-limit", "0.001", "--json", "--repeat", 1)
    assert code == 1
    first, second = results(out)[1]
    assert (first["status"], second["label"].split()[0]) == ("timeout", "relu:x=3,dtype=f32")
    assert "no answer in time" in first["why"]


def test_it_passes_the_validation_layer_that_it_loads(player, model, tmp_path):
    pack(model, tmp_path / "p")
    code, out, err = player(tmp_path / "p", "--validate", "--json")
    assert (code, err) == (0, "")
    assert results(out)[0]["validated"] is True


@pytest.mark.parametrize("planned_for", ["auto", "adreno-740", "mali-g57"])
def test_textures_are_played_under_the_validation_layer(player, model, tmp_path, planned_for):
    """A model from textures, node by node and timed; in three dimensions where it is planned for a phone."""
    route = "node:conv # 1=texture_tile", "node:depthwise=texture_depthwise"
    forced = [word for one in route for word in ("--route", one)]
    folder = pack(model, *forced, "--device", planned_for, tmp_path / "p")
    (whole,) = folder.plans()
    assert {line.split()[2] for line in folder.lines(whole) if line.startswith("texture ")} == {"rgba32f"}
    code, out, err = player(tmp_path / "p", "--validate", "--json", "--repeat", 3, "--bench", "--runs", 3)
    assert (code, err) == (0, "")
    (result,) = results(out)[1]
    assert [node["cause"] for node in result["nodes"]] == [""] * 5
    assert (result["runs"], result["distinct"], result["shared"]) == (3, 1, [])


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_textures_of_16_bit_floats_are_played(player, tmp_path, dtype):
    call = f"conv2d:x=2x7x5x6,w=13x7x1x1,b=13,dtype={dtype}"
    pack(call, "--route", "conv2d=texture_pointwise", tmp_path / "p")
    code, out, err = player(tmp_path / "p", "--validate", "--json")
    if code == 2:
        assert "the SPIR-V capability" in results(out)[1][0]["why"]
        return
    assert (code, err) == (0, "")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (r"texture (\d+) rgba32f 8 10 0", r"texture \1 rgba32f 8 11 0", "its texels are not the bytes of its buffer"),
        (
            r"texture (\d+) rgba32f 8 10 0",
            r"texture \1 rgba32f 80 1 0\ntexture \1 rgba32f 80 1 0",
            "device buffer, once",
        ),
        (r"texture (\d+) rgba32f 8 10 0", r"texture \1 rgba8 8 10 0", "there are no texels rgba8"),
        (r"texture (\d+) rgba32f 8 10 0", r"texture 999 rgba32f 8 10 0", "there is no buffer 999"),
        (r"\ntexture \d+ rgba32f 8 10 0", "", "is no texture"),
        (r"\nbindings \d+ ssbb", "", "is a texture"),
        (r"\nbindings (\d+) ssbb", r"\nbindings \1 ssb", "each binding has a letter"),
        (r"\nrun\n", r"\nrun\ntexture 0 rgba32f 1 1 0\n", "textures come before commands"),
    ],
)
def test_textures_that_a_reader_must_refuse(player, tmp_path, old, new, says):
    folder = pack("conv2d:x=1x4x10x8,w=4x4x1x1", "--route", "conv2d=texture_pointwise", tmp_path / "p")
    (plan,) = folder.plans()
    found = re.search(old, folder.text(plan))
    assert found
    folder.replace(plan, found[0], found.expand(new))
    code, out, _ = player(tmp_path / "p")
    assert code == 2
    assert says in out


def test_a_texture_over_the_device_is_refused_with_both_numbers(player, tmp_path):
    folder = pack("conv2d:x=1x4x10x8,w=4x4x1x1", "--route", "conv2d=texture_pointwise", tmp_path / "p")
    (plan,) = folder.plans()
    (line,) = [line for line in folder.lines(plan) if line.endswith("rgba32f 8 10 0")]
    number = line.split()[1]
    folder.replace(plan, f"buffer {number} device 1280", f"buffer {number} device {65536 * 16}")
    (plan,) = folder.plans()
    folder.replace(plan, line, f"texture {number} rgba32f 65536 1 0")
    code, out, _ = player(tmp_path / "p")
    assert code == 2
    assert re.search(r"is a part of a texture|65536 texels on an axis, and this device takes \d+", out)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("needs maxPushConstantsSize ", "needs maxPushConstantsSize 9", "needs maxPushConstantsSize 9"),
        ("needs maxPushConstantsSize ", "needs somethingElse ", "needs somethingElse, a limit that this player"),
        ("vkconv-pack 2", "vkconv-pack 3", "begins with 'vkconv-pack 3'"),
        ("\npipeline 0", "\npipeline 1 x.spv 255 0 0\npipeline 0", "bad line: pipeline 1"),
        ("\nload\n", "\npipeline 1 x.spv 2 0 0\nload\n", "cannot read"),
        ("\nrun\n", "\nrun\ndispatch 0 65536 1 1 {}\n", "65536 workgroups on an axis, and this device takes 65535"),
        ("\nload\n", "\npipeline 1 x.spv 200 0 0\nload\n", "200 bindings, and this device takes"),
        ("\nbuffer 0 device ", "\nbuffer 0 device 99999999", "bytes of buffers, and the largest heap"),
    ],
)
def test_a_plan_that_cannot_be_played(player, tmp_path, old, new, says):
    folder = pack("relu:x=300", tmp_path / "p")
    (plan,) = folder.plans()
    (first,) = [line for line in folder.lines(plan) if line.startswith("dispatch 0 ")][:1]
    folder.replace(plan, old, new.format(" ".join(first.split(" # ")[0].split()[5:])))  # its push and places
    code, out, _ = player(tmp_path / "p")
    assert code == 2
    assert says in out


def test_a_damaged_file_is_refused(player, tmp_path):
    folder = pack("relu:x=300", tmp_path / "p")
    for file in folder.path.glob("files/*.bin"):
        data = bytearray(file.read_bytes())
        data[5] ^= 1
        file.write_bytes(data)
    code, out, _ = player(tmp_path / "p")
    assert code == 2
    assert "is damaged: its SHA-256 begins with" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "name a folder"),
        (["a", "b"], "one folder is played at a time"),
        (["a", "--runs"], "--runs needs a value"),
        (["a", "--runs", "1x"], "--runs '1x' is no whole number from 1 on"),
        (["a", "--min-time=nan"], "--min-time 'nan' is no number of seconds"),
        (["a", "--frobnicate"], "there is no option --frobnicate"),
        (["a", "--json=1"], "--json takes no value"),
        (["a", "--keep"], "--keep needs --got DIR"),
        (["--info", "a"], "--info plays no folder"),
        (["nowhere"], "cannot read nowhere/index.txt"),
    ],
)
def test_arguments(player, words, says):
    code, _, err = player(*words)
    assert code == 2
    assert says in err


def test_no_such_device(player, tmp_path):
    pack("relu:x=3", tmp_path / "p")
    for words in ([tmp_path / "p"], ["--info"]):
        code, _, err = player(*words, "--device", "77")
        assert code == 3
        assert "there is no Vulkan device 77; there are: 0 " in err


def test_pipelines_with_their_push_constants_as_constants(player, model, tmp_path):
    for way in ("--fixed-push", "--no-fixed-push"):
        pack(model, way, tmp_path / way)
        code, out, err = player(tmp_path / way, "--json", "--repeat", 3)
        assert (code, err) == (0, "")
        (result,) = results(out)[1]
        assert all(node["cause"] == "" for node in result["nodes"]) and result["distinct"] == 1
    fixed, pushed = (
        [pushes(path.read_text()) for path in sorted((tmp_path / way).rglob("*.plan"))]
        for way in ("--fixed-push", "--no-fixed-push")
    )
    assert sum(fixed) < sum(pushed) and all(pushed)


def pushes(text):
    """Launches of a plan that push something."""
    return sum(line.split()[5] != "-" for line in text.splitlines() if line.startswith("dispatch "))
