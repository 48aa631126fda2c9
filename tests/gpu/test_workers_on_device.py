"""Many boards at once: three workers of dask.distributed in processes of their own, of which one is killed."""

import os
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
from cli_kit import ROOT, vkconv, vkconv_process
from graph_kit import make_graph
from required import required

from vkconv.bench.files import read_result
from vkconv.graph.vkc import save_vkc

required("distributed")
pytestmark = [pytest.mark.gpu, pytest.mark.alone]

CALLS = [f"matmul:a={n}x64,b=64x96" for n in range(40, 52)]


class Farm:
    """A scheduler and its workers by name; the last one was given none."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"dask://127.0.0.1:{self.port}"
        # The layer would write to the log of this process.
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("VK_INSTANCE")}
        self.env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        self.log = (folder / "log").open("w")
        self.scheduler = self._start("scheduler", "--port", self.port, "--no-show")
        options = ("--nworkers", 1, "--nthreads", 1, "--no-nanny")
        self.workers = {
            name: self._start("worker", f"tcp://127.0.0.1:{self.port}", *options, *(["--name", name] if name else []))
            for name in ("pixel", "board", "")
        }
        code = f"import distributed; distributed.Client('127.0.0.1:{self.port}', timeout=60).wait_for_workers(3, 60)"
        subprocess.run([sys.executable, "-c", code], env=self.env, check=True, timeout=120)

    def _start(self, *words):
        command = [sys.executable, "-m", "dask", *map(str, words), "--no-dashboard"]
        return subprocess.Popen(command, env=self.env, stdout=self.log, stderr=self.log)

    def close(self):
        for process in (*self.workers.values(), self.scheduler):
            process.kill()
            process.wait()
        self.log.close()


@pytest.fixture(scope="module")
def farm(tmp_path_factory):
    made = Farm(tmp_path_factory.mktemp("farm"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def cpu(device):
    """What the worker is called that was given no name: its device."""
    from vkconv.backend.runtime import select_device

    return select_device(device)[1].name


def test_a_call_and_a_model_are_checked_on_every_board(farm, cpu, tmp_path):
    nodes = [("conv2d", "x w", "c"), ("relu", "c", "y")]
    graph = make_graph({"x": (1, 3, 9, 9)}, nodes, "y", {"w": np.ones((4, 3, 3, 3), np.float32)})
    save_vkc(graph, tmp_path / "m.vkc")
    page = tmp_path / "page.html"
    argv = ("check", tmp_path / "m.vkc", "--workers", farm.url, "--repeat", 3, "--no-passes", "-o", page)
    code, out, err = vkconv_process(*argv)
    assert code == 0 and all(line.endswith(" left") for line in err.splitlines())
    for board in ("pixel", "board", cpu):
        assert f"{board} " in out
        assert board in page.read_text().replace("<wbr>", "")
    assert out.count("2 nodes right, alone and in the run; the same bytes in 3 runs") == 3
    assert out.rstrip().endswith(f"wrote {page}") and "all right" in out


def test_a_worker_that_is_lost_is_a_row_and_the_others_go_on(farm, cpu, tmp_path):
    target = tmp_path / "rows.json"
    command = [sys.executable, "-m", "vkconv", "bench", *CALLS, "--workers", farm.url, "-o", str(target)]
    command += ["--min-time", "0.01", "--runs", "3"]
    with subprocess.Popen(
        command, env=farm.env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as bench:
        for line in bench.stderr:
            if "] board: " in line:
                farm.workers["board"].send_signal(signal.SIGKILL)
                break
        out, err = bench.communicate(timeout=120)
    assert bench.returncode == 1, err
    result = read_result(target)
    assert result.header.device == f"3 boards of {farm.url}"
    assert {board.label: board.device for board in result.header.boards} == {"board": cpu, "pixel": cpu, cpu: cpu}
    for name in ("pixel", cpu):
        rows = [row for row in result.rows if row.device == name]
        assert [row.call.partition(",dtype")[0] for row in rows] == CALLS
        assert all(row.ok and row.percent_of_floor > 0 for row in rows)
    *measured, lost = [row for row in result.rows if row.device == "board"]
    assert all(row.ok for row in measured) and 0 < len(measured) < len(CALLS)
    assert lost.check == "lost"
    left = len(CALLS) - len(measured) - 1
    assert lost.why.startswith("the worker was lost") and (f"{left} more row" in lost.why) == bool(left)
    assert f"board LOST: {lost.why}" in out
    assert "Traceback" not in err
    code, out, _ = vkconv("compare", target, target)
    assert code == 0 and f"pixel: {CALLS[0]}" in out
