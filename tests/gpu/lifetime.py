"""How long a process that has used a device may take to end, and where one is that does not."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

# With the device at work: NVIDIA's kernel driver takes 5.1 to 5.3 s to clear up behind such a process (H200, 580.159),
# others no time at all. The work that it must not wait for is far longer, also where others slow the device down.
ENDS_WITHIN_S, WORK_S = 10, 30


def where_it_is(pid: int) -> str:
    """What the kernel tells of each thread of a process: what it does, and what in the kernel it waits for."""
    told = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        for name in ("comm", "wchan", "syscall", "stack"):
            with contextlib.suppress(OSError):
                told.append(f"{task}/{name}: {(task / name).read_text().strip()}")
        with contextlib.suppress(OSError):
            told += [line for line in (task / "status").read_text().splitlines() if line.startswith(("State", "Sig"))]
    return "\n".join(told)


def run_told(program: str, arguments: Sequence[str], seconds: float) -> None:
    """Run a Python program that tells on stderr what it does. AssertionError, with all that it told, where it fails or
    does not end in time."""
    # Into a file: a child that does not end would hold a pipe open.
    with tempfile.TemporaryFile("w+") as told:
        running = subprocess.Popen([sys.executable, "-c", program, *arguments], stderr=told)
        late = ""
        try:
            code = running.wait(seconds)
        except subprocess.TimeoutExpired:
            late = f"not ended after {seconds} s:\n{where_it_is(running.pid)}\n"
            running.kill()
            code = running.wait()
        told.seek(0)
        assert code == 0 and not late, f"{late}exit code {code}, after:\n{told.read()}"
