"""Processes that are killed while they write: the file is the old one or the new one, whole, whoever else writes."""

import contextlib
import os
import random
import subprocess
import sys
import time

import pytest

from vkconv import core
from vkconv.bench.files import read_result
from vkconv.device import load_device
from vkconv.graph.vkc import load_vkc
from vkconv.plan.measured import read_table

pytestmark = pytest.mark.long

KILLS = 12
_WRITERS = {
    "a.vkc": """
from vkconv.graph import Graph, TensorSpec
from vkconv.graph.vkc import save_vkc
size = 300_000
def write(i):
    array = np.full(size + i % 7, i, np.float32)
    save_vkc(Graph({"x": TensorSpec((2,))}, ("w",), (), {"w": array}), path)
""",
    "device.json": """
from vkconv.device import load_device
device = load_device("lavapipe")
def write(i):
    device.save(path)
""",
    "table.json": """
from targets import TARGETS, FOLDER
TARGETS["measured"].seeds()
from vkconv.plan.measured import read_table, write_table
table = read_table(FOLDER / "seed.json")
def write(i):
    write_table(table, path)
""",
    "result.json": """
from targets import TARGETS, FOLDER
TARGETS["result"].seeds()
from vkconv.bench.files import read_result, write_result
result = read_result(FOLDER / "seed-result.json")
def write(i):
    write_result(result, [path])
""",
}
_LOOP = """
print("ready", flush=True)
i = 0
while True:
    write(i)
    i += 1
"""


def _whole_graph(path):
    values = load_vkc(path).constants["w"]
    assert values.size >= 300_000 and (values == values[0]).all()


_READERS = {"a.vkc": _whole_graph, "device.json": load_device, "table.json": read_table, "result.json": read_result}


@contextlib.contextmanager
def running(program):
    """A process that has said that it is ready; killed at the end, also where a test fails."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("name", _WRITERS)
def test_a_killed_writer_leaves_a_whole_file_or_none(tmp_path, name):
    path, rng = tmp_path / name, random.Random(name)
    program = f"import numpy as np\nfrom pathlib import Path\npath = Path({str(path)!r})\n{_WRITERS[name]}{_LOOP}"
    seen = 0
    for _ in range(KILLS // 2):
        with running(program) as first, running(program) as second:
            for writer in (first, second):
                time.sleep(rng.uniform(0, 0.06))
                writer.kill()
                writer.wait()
                if path.exists():
                    _READERS[name](path)
                    seen += 1
    assert seen > KILLS // 2  # else it was killed before it wrote


_UNFINISHED = """
from pathlib import Path
from vkconv.core import atomic_write
with atomic_write(Path({path!r})) as file:
    file.write(b"half")
    file.flush()
    print("ready", flush=True)
    time.sleep(600)
"""


@contextlib.contextmanager
def unfinished(path):
    """A process that is in the middle of writing a file, and what it has written so far."""
    before = set(path.parent.glob(".*.part"))
    with running(f"import time{_UNFINISHED.format(path=str(path))}") as process:
        (part,) = set(path.parent.glob(".*.part")) - before
        yield process, part


def test_the_next_writer_removes_what_a_killed_one_left_and_nothing_else(tmp_path, monkeypatch):
    with (
        unfinished(tmp_path / "one.json") as (killed, left),
        unfinished(tmp_path / "two.json") as (recently, fresh),
        unfinished(tmp_path / "three.json") as (_, theirs),
    ):
        for process in (killed, recently):
            process.kill()
            process.wait()
        for part in (left, theirs):
            os.utime(part, (0, 0))
        others = tmp_path / "thesis.part"
        others.write_bytes(b"not ours")
        os.utime(others, (0, 0))
        link = tmp_path / f".link.{'0' * 16}.vkconv.part"
        link.symlink_to(others)
        monkeypatch.setattr(core, "_tidied", set())
        with core.atomic_write(tmp_path / "four.json") as file:
            file.write(b"whole")
        assert not left.exists()  # nobody owns it
        assert fresh.exists()  # too young to tell
        assert theirs.exists()  # locked by a living process
        assert others.exists() and link.is_symlink()
        assert (tmp_path / "four.json").read_bytes() == b"whole"
