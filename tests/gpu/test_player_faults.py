"""The player on drivers that crash, hang, or lose their device: what becomes of the pack, and of those after it."""

import ctypes.util
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cli_kit import vkconv
from pack_kit import player_for_tests
from required import unavailable

pytestmark = pytest.mark.gpu
_SOURCE = Path(__file__).parent / "faulty_loader.c"


def _real_loader():
    """The path of the system's loader: its bare name would find the faulty one."""
    handle = ctypes.CDLL(ctypes.util.find_library("vulkan") or "libvulkan.so.1")
    maps = Path("/proc/self/maps").read_text()
    del handle
    return next(line.split()[-1] for line in maps.splitlines() if "libvulkan.so" in line)


@pytest.fixture(scope="module")
def player(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None or shutil.which("c++") is None or not Path("/usr/include/vulkan/vulkan_core.h").exists():
        unavailable("cc, c++ and libvulkan-dev build the player and a loader that fails")
    folder = tmp_path_factory.mktemp("faulty")
    program = player_for_tests("c++", folder)
    library = folder / "libvulkan.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, _SOURCE, "-ldl"], check=True)

    def play(fault, packs, *words):
        given = {"LD_LIBRARY_PATH": str(folder), "VKCONV_FAULT": fault, "VKCONV_REAL_LOADER": _real_loader()}
        command = [program, packs, "--json", "--repeat", "1", *words]
        done = subprocess.run(
            [*map(str, command)], capture_output=True, text=True, timeout=120, env={**os.environ, **given}
        )
        assert "Sanitizer" not in done.stderr
        _, *results = map(json.loads, done.stdout.splitlines())
        return done.returncode, results

    return play


@pytest.fixture(scope="module")
def packs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packs") / "p"
    code, _, err = vkconv("pack", *(f"relu:x={size}" for size in range(3, 11)), folder)
    assert code == 0, err
    return folder


@pytest.mark.parametrize(
    ("fault", "status", "why"),
    [
        ("crash", "crashed", "the driver crashed (signal 11, "),
        ("hang", "timeout", "took more than 3 s"),
        ("lost", "lost", "the device is lost (VkResult -4)"),
    ],
)
@pytest.mark.share(2)
def test_one_pack_ends_and_the_next_is_played(player, packs, tmp_path, fault, status, why):
    """The third pack of a process: of eight, the third and the sixth."""
    limit = ("--compile-limit", "3") if fault == "hang" else ()  # opening the device is held to it too
    code, results = player(f"{fault}:3:{tmp_path / 'gone'}", packs, *limit)
    assert code == 1
    assert [result["status"] for result in results] == ["ok", "ok", status] * 2 + ["ok"] * 2
    assert all(why in result["why"] for result in results if result["status"] == status)
    assert ("compiling" in results[2]["why"]) == (fault != "lost")


def test_a_device_that_fails_again_and_again_is_left_alone(player, packs, tmp_path):
    code, results = player(f"crash:1:{tmp_path / 'gone'}", packs)
    assert code == 1
    assert [result["status"] for result in results] == ["crashed"] * 5 + ["not played"] * 3
    assert "the device failed 5 times in a row before it" in results[-1]["why"]


def test_a_device_that_does_not_open_again(player, packs, tmp_path):
    code, results = player(f"gone:3:{tmp_path / 'gone'}", packs)
    assert code == 1
    assert [result["status"] for result in results] == ["ok", "ok"] + ["lost"] * 6
    assert {result["why"] for result in results[3:]} == {"the device cannot be opened again"}
