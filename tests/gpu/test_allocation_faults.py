"""Allocations of the bridge and the player, and what the player does to files, fail one after another: an error that
says so, no crash, nothing lost, and the next attempt is right.

A library before libstdc++ answers for it: faulty_new.cpp. The validation layer, whose own allocations count nothing
here, stays out.
"""

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_kit import vkconv
from faults_kit import environment
from pack_kit import player_for_tests
from required import unavailable
from shipped import EXHAUSTIVE, share

pytestmark = pytest.mark.gpu
# For calls at places that were tried before; each place is tried once, however long that takes.
PATIENCE_S = 10 if EXHAUSTIVE else 2


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("c++") is None:
        unavailable("c++ builds what fails")
    library = tmp_path_factory.mktemp("faulty") / "faulty_new.so"
    source = Path(__file__).parent / "faulty_new.cpp"
    subprocess.run(["c++", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, timeout=120)
    return library


_BRIDGE = """
import ctypes, sys, time
import numpy as np
import vkconv
from faults_kit import graph, rng, x
from vkconv.backend import runtime

library = ctypes.CDLL(None)
calls, fail_at = (ctypes.c_int.in_dll(library, name) for name in ("calls", "fail_at"))
sites = (ctypes.c_void_p * (1 << 16)).in_dll(library, "sites")

def attempt(number):
    runtime._open.clear()
    calls.value, fail_at.value = 0, number
    try:
        with vkconv.load(graph) as session:
            session.run({"x": x})
            (run,) = [session.submit({"x": x})]
            run.result()
            return session.run({"x": x})["z"].tobytes()
    finally:
        fail_at.value = 0

want = attempt(0)
attempt(0)
count = calls.value
seen = list(sites[:count])
first = [1 + seen.index(site) for site in dict.fromkeys(seen)]
others = rng.permutation(np.setdiff1d(np.arange(1, count + 1), first)).tolist()
started, tried, told = time.perf_counter(), 0, 0
for number in [*first, *others]:
    if tried >= max(40, len(first)) and time.perf_counter() - started > PATIENCE_S:
        break
    tried += 1
    try:
        got = attempt(number)
    except (vkconv.VkconvError, MemoryError):
        told += 1
    else:
        assert got == want, number
    assert attempt(0) == want, number
print(tried, len(first), count, told)
"""


def test_whichever_allocation_of_the_bridge_fails_the_process_works_on(faulty: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BRIDGE.replace("PATIENCE_S", str(PATIENCE_S))],
        env=environment(faulty, VKCONV_FAIL="_bridge:new:0", VKCONV_CACHE_DIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tried, _, count, told = map(int, done.stdout.split())
    assert count > 100 and tried >= 40 and told > tried / 2


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packs") / "p"
    code, _, err = vkconv("pack", "relu:x=3", "matmul:a=5x8,b=8x7", folder)
    assert code == 0, err
    return folder


@pytest.mark.parametrize("kind", ["new", "file"])
def test_whichever_call_of_the_player_fails_it_says_so(faulty: Path, packs: Path, tmp_path: Path, kind: str) -> None:
    """A process of its own each time. What is played is right or told; what is not played is not called right."""
    program = player_for_tests("c++", tmp_path)
    log, results = tmp_path / "log", tmp_path / "results"
    words = [program, packs, "--json", "--repeat", "1", "--results", results, "--got", tmp_path / "got", "--keep"]

    def play(number: int) -> "subprocess.CompletedProcess[str]":
        log.write_text("")
        shutil.rmtree(tmp_path / "got", ignore_errors=True)
        given = environment(faulty, VKCONV_FAIL=f"{program.name}:{kind}:{number}", VKCONV_FAIL_LOG=str(log))
        return subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=120, env=given)

    whole = play(0)
    assert whole.returncode == 0, whole.stderr
    calls = {process: line.split()[1:] for process, line in enumerate(log.read_text().splitlines())}
    assert len(calls) == 2, "of the parent, and of its child"
    numbers = {1 + at.index(site) for at in calls.values() for site in dict.fromkeys(at)}
    rest = sorted(set(range(1, 1 + max(map(len, calls.values())))) - numbers)
    random.Random(1).shuffle(rest)
    started, tried, told = time.monotonic(), 0, 0
    some = list(share(12, sorted(numbers)))
    for number in (*some, *rest):
        if tried >= max(20, len(some)) and time.monotonic() - started > PATIENCE_S:
            break
        tried += 1
        done = play(number)
        at = (number, done.returncode, done.stdout, done.stderr)
        assert 0 <= done.returncode <= 3, at
        assert "crashed" not in done.stdout + done.stderr, at
        assert "terminate called" not in done.stderr and "Sanitizer" not in done.stderr, at
        played = [json.loads(line) for line in done.stdout.splitlines() if line]
        said = [result["status"] for result in played if "pack" in result]
        if done.returncode == 0:
            assert said == ["ok", "ok"], at
            assert results.read_text() == done.stdout, at
            assert len(list((tmp_path / "got").iterdir())) == 2, at
        else:
            told += 1
            assert done.stderr or any(result.get("why") for result in played), at
    assert told > tried / 4, (tried, told)
