"""The compilers of real GPUs, which are not here: they compile, fail as they say, and tell of their devices."""

import json
import struct
import subprocess
from pathlib import Path

import pytest
from cli_kit import vkconv

from vkconv.compilers.device_files import device_file
from vkconv.compilers.gpus import Gpu, data, find_gpu, set_of
from vkconv.compilers.installed import Installed
from vkconv.compilers.live import live_facts
from vkconv.compilers.pipelines import Pipeline
from vkconv.compilers.runner import compile_all
from vkconv.core import DeviceError
from vkconv.device import load_device
from vkconv.device.files import problems_of
from vkconv.kernel import Shader

WITH_FILES = [gpu for gpu in data().gpus if gpu.device]
CALL = "conv2d:x=1x16x14x14,w=32x16x3x3,p=1,b=32,act=relu"
FIRST = ("adreno-740", "navi31", "ga102", "apple-m1")
# Columns that each of their drivers fills; the numbers change with its version.
FILLED = {"occupancy", "spills", "instructions"}

HEADER = struct.pack("<5I", 0x07230203, 0x00010300, 0, 1, 0)
# A module whose only instruction has no words: compilers do not look for that.
BROKEN = HEADER + struct.pack("<I", 0)


class Made(Pipeline):
    """One of SPIR-V that no shader gives."""

    code = BROKEN  # type: ignore[assignment]


@pytest.mark.parametrize("gpu", FIRST)
def test_a_convolution_is_compiled_by_every_route(amd64: Installed, gpu: str, tmp_path: Path) -> None:
    words = ("compile", CALL, "--with", gpu, "--route", "all", "--isa", tmp_path, "--json")
    code, out, err = vkconv(*words)
    rows = json.loads(out)["rows"]
    assert code == 0, (err, [row for row in rows if row["verdict"] != "ok"])
    compiled = [row for row in rows if row["verdict"] in ("ok", "spills")]
    assert len(compiled) == len(rows) >= 6 and sum(row["chosen"] for row in rows)
    for row in compiled:
        assert all(row["code"][name] is not None for name in FILLED)
        assert row["code"]["instructions"] > 10 and row["code"]["occupancy"] > 0
        assert (row["code"]["registers"] or row["code"]["half_registers"]) > 0
        assert row["compile_ms"] > 0 and row["subgroup_size"] in (32, 64, 128)
    texts = [path.read_text() for path in tmp_path.iterdir()]
    assert len(texts) == (0 if gpu == "apple-m1" else len({row["pipeline"] for row in compiled}))
    assert all("====" in text and len(text) > 1000 for text in texts)


def test_larger_tiles_take_more_registers(amd64: Installed) -> None:
    words = ("matmul:a=4096x4096,b=4096x4096", "--route", "shared", "--sweep", "tile")
    _, out, _ = vkconv("compile", *words, "--with", "ga102", "--json")
    by_tile = {row["params"]["tile"]: row["code"] for row in json.loads(out)["rows"]}
    assert by_tile["128x128x16"]["registers"] > by_tile["32x32x16"]["registers"]
    assert by_tile["128x128x16"]["occupancy"] < by_tile["32x32x16"]["occupancy"]


def test_a_compilation_over_the_limit_is_ended(amd64: Installed) -> None:
    call = "matmul:a=4096x4096,b=4096x4096"
    code, out, _ = vkconv("compile", call, "--with", "ga102", "--max-seconds", "0.005", "--again", "--json")
    (row,) = json.loads(out)["rows"]
    assert (code, row["verdict"], row["why"]) == (1, "too long", "the compiler was not done after 0.005 s")


@pytest.mark.parametrize("gpu", FIRST)
def test_a_compiler_that_ends_its_process_is_a_result(
    amd64: Installed, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VKCONV_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("VKCONV_COMPILERS", str(amd64.folder.parent))
    broken = Made(Shader("broken"), (64, 1, 1), 1, 0)
    found = compile_all(find_gpu(gpu), [broken], max_seconds=30)[broken]
    assert found.outcome in ("signal", "exit", "refused") and found.why


def test_every_gpu_starts_and_says_its_version(amd64: Installed) -> None:
    for gpu in data().gpus:
        if set_of(gpu) == "amd64":
            command, environment = amd64.command(gpu, [amd64.program()]), amd64.environment(gpu)
            done = subprocess.run(command, env=environment, capture_output=True, text=True, input="")
            said = json.loads(done.stdout)
            assert said["statistics"] and amd64.version in said["driver_info"], (gpu.name, done)


@pytest.mark.parametrize("gpu", FIRST)
def test_the_drivers_own_facts_are_a_device_file(amd64: Installed, gpu: str) -> None:
    code, out, err = vkconv("devices", "--with", gpu, "--dump")
    assert code == 0, err
    facts = json.loads(out)
    assert not list(problems_of(facts)) and f"vkconv devices --with {gpu} --dump" in facts["source"]
    assert amd64.version in live_facts(find_gpu(gpu)).driver


def _hold_file_to_driver(gpu: Gpu, there: Installed) -> None:
    kept = dict(load_device(gpu.device).facts)
    if there.version not in load_device(gpu.device).driver:
        pytest.skip(f"{gpu.device} is of {load_device(gpu.device).driver}, and {there.version} is installed")
    made = device_file(gpu, live_facts(gpu), kept)
    del made["schema"]
    assert made == kept, f"python tools/driver_files.py {gpu.name} writes what the driver says"


@pytest.mark.parametrize("gpu", [gpu for gpu in WITH_FILES if set_of(gpu) == "amd64"], ids=lambda gpu: gpu.name)
def test_a_shipped_file_is_what_the_driver_says(amd64: Installed, gpu: Gpu) -> None:
    _hold_file_to_driver(gpu, amd64)


@pytest.mark.parametrize("gpu", [gpu for gpu in WITH_FILES if set_of(gpu) == "arm64"], ids=lambda gpu: gpu.name)
def test_a_shipped_file_is_what_the_emulated_driver_says(arm64: Installed, gpu: Gpu) -> None:
    _hold_file_to_driver(gpu, arm64)


def test_a_driver_that_is_not_there_is_an_error(amd64: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = find_gpu("ga102")
    monkeypatch.setattr(
        "vkconv.compilers.installed.Installed.environment", lambda self, gpu: {"VK_DRIVER_FILES": "/none"}
    )
    with pytest.raises(DeviceError, match="ga102: its driver does not start: vkCreateInstance"):
        compile_all(gpu, [Made(Shader("broken"), (64, 1, 1), 1, 0)], max_seconds=30, fresh=True)


@pytest.mark.parametrize("gpu", ["mali-g610", "raspberry-pi-5", "powervr-bxs-4-64"])
def test_emulated_compilers_do_the_same(arm64: Installed, gpu: str) -> None:
    code, out, err = vkconv("compile", "relu:x=3x5", "--with", gpu, "--json")
    (row,) = json.loads(out)["rows"]
    assert code == 0 and row["verdict"] == "ok" and row["code"]["instructions"] > 0, err
    assert live_facts(find_gpu(gpu)).limit("maxComputeWorkGroupInvocations") >= 128
