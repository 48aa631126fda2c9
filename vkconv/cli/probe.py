"""Devices listed and tried in a process of its own, so that a driver that crashes or hangs takes nothing with it.

``python -m vkconv.cli.probe`` prints the devices as JSON, ``python -m vkconv.cli.probe INDEX`` runs two dependent
kernels on one of them. `probe` starts that process and reads it.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

import numpy as np

from vkconv.core import DeviceError, VkconvError, printable, short

TIMEOUT_S = 120
_SHAPE = (3, 5, 67)


def probe(index: int | None = None) -> dict[str, Any]:
    """What the process found. Raises DeviceError when it failed, crashed or took longer than `TIMEOUT_S`."""
    command = [sys.executable, "-P", "-m", "vkconv.cli.probe", *([] if index is None else [str(index)])]
    # The process must find the same vkconv, however this one found it.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            env=env,
            timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise DeviceError(f"no answer in {TIMEOUT_S} s: the driver hangs; update it or try another device") from None
    said = (done.stderr.strip().splitlines() or ["no message"])[-1]
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise DeviceError(f"the process died of {name} ({said}): the driver crashed; update it or try another device")
    if done.returncode:
        raise DeviceError(said.removeprefix("error: "))
    return answer_of(done.stdout)


def answer_of(text: str) -> dict[str, Any]:
    """What a probe answers: its last line, since a driver may print to stdout too. DeviceError where that is none."""
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(answer := json.loads((text.splitlines() or [""])[-1]), dict):
            return answer
    raise DeviceError(f"the process gave no answer, but {short(text[-200:])}: does the driver print as it ends?")


def list_all() -> dict[str, Any]:
    """How the bridge was built, and every device in the loader's order."""
    from vkconv.backend.errors import import_bridge
    from vkconv.backend.runtime import list_devices

    build = dict(import_bridge().BUILD)
    devices = [
        {
            "name": d.name,
            "kind": d.kind,
            "driver": d.driver,
            "vulkan": d.api_version,
            "quirks": [{"id": q.id, "effect": q.effect, "action": q.action, "source": q.source} for q in d.quirks],
        }
        for d in list_devices()
    ]
    return {"build": build, "kp": sys.modules["kp"].__file__, "devices": devices}


def try_device(index: int) -> dict[str, Any]:
    """relu(a + b), whose two kernels depend on each other, three times over poisoned memory, compared with ``==``."""
    from vkconv.graph import Graph, Node, TensorSpec
    from vkconv.plan.planner import Options
    from vkconv.session import Session

    graph = Graph(
        {"a": TensorSpec(_SHAPE), "b": TensorSpec(_SHAPE)},
        ("y",),
        (Node("sum", "add", ("a", "b"), ("s",)), Node("clamp", "relu", ("s",), ("y",))),
        name="doctor",
    )
    random = np.random.default_rng(index)
    a, b = (random.integers(-9, 10, _SHAPE).astype(np.float32) for _ in "ab")
    expected = np.maximum(a + b, 0)
    with Session(graph, index, options=Options(passes=False), poison=True) as session:
        wrong = [int((session.run({"a": a, "b": b})["y"] != expected).sum()) for _ in range(3)]
        _, timing = session.measure({"a": a, "b": b})
        kernel_us = [us for node, us in timing.gpu_us.items() if node in ("sum", "clamp")]
        return {
            "elements": expected.size,
            "wrong": wrong,
            "first_run_us": session.timings.first_run_us,
            "compile_us": session.timings.compile_us,
            "kernel_us": kernel_us,
            "gpu_us": sum(timing.gpu_us.values()),
            "wall_us": timing.wall_us,
            "tick_ns": session.device.timestamp_period_ns,
        }


if __name__ == "__main__":
    try:
        print(json.dumps(try_device(int(sys.argv[1])) if len(sys.argv) > 1 else list_all()))
    except VkconvError as problem:
        print(f"error: {printable(' '.join(str(problem).split()))}", file=sys.stderr)
        sys.exit(problem.exit_code)
