"""What a submission and one more dispatch cost on a device, through the bridge and through kp's own eval().

    python tools/submit_cost.py [--device INDEX] [--runs N] [--json]

Two rows: `submit and wait` is one recording with a single tiny dispatch, polled (spin), blocked on (wait),
with the bridge's default of both, and evaluated by kp on the same queue; `one more dispatch` is the slope
between recordings of 1 and of 201 dispatches that each depend on the one before through a barrier. Medians,
in microseconds. Every run adds to a counter on the device that is checked at the end, so a dispatch that
did nothing is an error and not a good result.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from vkconv.backend import _bridge
from vkconv.glslang import compile_shader
from vkconv.kernel import Shader

SCHEMA = "vkconv.submit-cost/1"
LANES = 32
MORE = 200
TARGETS_US = {"submit and wait": 60.0, "one more dispatch": 3.0}  # set for an NVIDIA H200
COUNT_SHADER = f"""
#version 450
layout(local_size_x = {LANES}) in;
layout(set = 0, binding = 0) buffer Counter {{ uint counter[]; }};
void main() {{ counter[gl_GlobalInvocationID.x] += 1; }}
"""


def count_spirv() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "count.comp").write_text(COUNT_SHADER)
        return compile_shader(Shader("count"), Path(folder))


def median_us(run: Callable[[], object], runs: int) -> float:
    """Median wall time of `run` in microseconds, after a fifth as many unmeasured calls."""
    for _ in range(max(3, runs // 5)):
        run()
    times_ns = []
    for _ in range(runs):
        start = time.perf_counter_ns()
        run()
        times_ns.append(time.perf_counter_ns() - start)
    return statistics.median(times_ns) / 1e3


class Counter:
    """Recordings that add to one counter per lane, and the sum that must come out."""

    def __init__(self, device: _bridge.Device) -> None:
        self.device = device
        self.nbytes = 4 * LANES
        self.buffer = device.buffer(self.nbytes, "device")
        self.pipeline = device.pipeline(count_spirv(), 1, 0)
        self.expected = 0
        clear = device.recording()
        clear.fill(self.buffer, 0, self.nbytes, 0)
        clear.end()
        clear.run()

    def recording(self, dispatches: int) -> _bridge.Recording:
        r = self.device.recording()
        for _ in range(dispatches):
            r.barrier(["compute", "transfer"], ["compute"])
            r.dispatch(self.pipeline, [(self.buffer, 0, self.nbytes)], b"", (1, 1, 1))
        r.end()
        return r

    def counted(self, run: Callable[[], object], dispatches: int) -> Callable[[], None]:
        def call() -> None:
            run()
            self.expected += dispatches

        return call

    def check(self) -> None:
        host = self.device.buffer(self.nbytes, "download")
        r = self.device.recording()
        r.barrier(["compute"], ["transfer"])
        r.copy(self.buffer, 0, host, 0, self.nbytes)
        r.barrier(["transfer"], ["host"])
        r.end()
        r.run()
        found = np.frombuffer(host.view, np.uint32)
        if not (found == self.expected % 2**32).all():
            sys.exit(f"submit_cost: {self.expected} dispatches ran, but the device counted {found.tolist()}")


def measure(device: _bridge.Device, runs: int) -> list[dict[str, object]]:
    """One dict per table row; times in microseconds."""
    counter = Counter(device)
    one, many = counter.recording(1), counter.recording(1 + MORE)
    submit_us = {
        "bridge": median_us(counter.counted(one.run, 1), runs),
        "spin": median_us(counter.counted(lambda: one.run(spin_us=1e6), 1), runs),
        "wait": median_us(counter.counted(lambda: one.run(spin_us=0.0), 1), runs),
        "kp eval()": median_us(counter.counted(one.sequence.eval, 1), runs),
    }
    slope_us = {}
    for name, few_call, many_call in (
        ("bridge", one.run, many.run),
        ("kp eval()", one.sequence.eval, many.sequence.eval),
    ):
        few = median_us(counter.counted(few_call, 1), runs)
        slope_us[name] = (median_us(counter.counted(many_call, 1 + MORE), runs) - few) / MORE
    counter.check()
    return [
        {"row": "submit and wait", "target_us": TARGETS_US["submit and wait"], "median_us": submit_us},
        {"row": "one more dispatch", "target_us": TARGETS_US["one more dispatch"], "median_us": slope_us},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", type=int, default=0, metavar="INDEX", help="Vulkan device (default 0)")
    parser.add_argument("--runs", type=int, default=300, metavar="N", help="measured calls per number")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    count = len(_bridge.devices())
    if not 0 <= options.device < count:
        sys.exit(f"submit_cost: there is no Vulkan device {options.device}; {count} found")
    with _bridge.Device(options.device) as device:
        properties = device.facts["properties"]
        name = properties["VkPhysicalDeviceProperties"]["deviceName"]
        driver = properties.get("VkPhysicalDeviceDriverProperties", {}).get("driverInfo", "")
        rows = measure(device, options.runs)
    if options.json:
        print(json.dumps({"schema": SCHEMA, "device": name, "driver": driver, "runs": options.runs, "rows": rows}))
        return
    print(f"{name}, {driver}; median of {options.runs} runs, µs (targets are for an NVIDIA H200)")
    columns = ["bridge", "spin", "wait", "kp eval()"]
    print(f"{'':<20}" + "".join(f"{column:>12}" for column in columns) + f"{'target':>10}")
    for row in rows:
        times = row["median_us"]
        assert isinstance(times, dict)
        cells = "".join(f"{times[column]:>12.2f}" if column in times else f"{'':>12}" for column in columns)
        print(f"{row['row']:<20}{cells}{'< ' + format(row['target_us'], '.0f'):>10}")


if __name__ == "__main__":
    main()
