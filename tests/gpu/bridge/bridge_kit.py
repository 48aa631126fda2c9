"""What the tests of the bridge share: kernels, and work of a known length."""

import struct
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vkconv.backend import _bridge
from vkconv.glslang import compile_shader
from vkconv.kernel import Shader

Floats = npt.NDArray[np.float32]

NAN_WORD = 0x7FC00BAD
AFFINE = """
#version 450
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { uint count; float scale; };
layout(set = 0, binding = 0) readonly buffer Source { float source[]; };
layout(set = 0, binding = 1) writeonly buffer Target { float target[]; };
void main() {
    const uint i = gl_GlobalInvocationID.x;
    if (i < count) target[i] = scale * source[i] + 1.0;
}
"""
SPIN = """
#version 450
layout(local_size_x = 8) in;
layout(push_constant) uniform Push { uint repeats, steps; };
layout(set = 0, binding = 0) buffer State { uint state[]; };
void main() {
    uint x = state[gl_GlobalInvocationID.x];
    for (uint j = 0; j < repeats; ++j)
        for (uint i = 0; i < steps; ++i) x = x * 1664525u + 1013904223u;
    state[gl_GlobalInvocationID.x] = x;
}
"""


def compile_source(source: str, folder: Path, name: str) -> bytes:
    (folder / f"{name}.comp").write_text(source)
    return compile_shader(Shader(name), folder)


class Affine:
    """y = scale * x + 1, `steps` times, in dependent dispatches between two poisoned buffers."""

    def __init__(self, device: _bridge.Device, spirv: bytes, count: int, steps: int = 1, timestamps: int = 0) -> None:
        nbytes = 4 * count
        self.count, self.steps = count, steps
        self.upload = device.buffer(nbytes, "upload")
        self.download = device.buffer(nbytes, "download")
        buffers = [device.buffer(nbytes, "device") for _ in range(2)]
        pipeline = device.pipeline(spirv, 2, 8, [64])
        r = self.recording = device.recording(timestamps)
        if timestamps:
            r.timestamp()
        r.copy(self.upload, 0, buffers[0], 0, nbytes)
        r.fill(buffers[1], 0, nbytes, NAN_WORD)
        for step in range(steps):
            r.barrier(["transfer", "compute"], ["compute"])
            push = struct.pack("If", count, 2.0)
            source, target = buffers[step % 2], buffers[1 - step % 2]
            r.dispatch(pipeline, [(source, 0, nbytes), (target, 0, nbytes)], push, ((count + 63) // 64, 1, 1))
            if timestamps:
                r.timestamp()
        r.barrier(["compute"], ["transfer"])
        r.copy(buffers[steps % 2], 0, self.download, 0, nbytes)
        r.barrier(["transfer"], ["host"])
        r.end()

    def __call__(self, x: Floats) -> Floats:
        np.frombuffer(self.upload.view, np.float32)[:] = x
        np.frombuffer(self.download.view, np.float32)[:] = np.nan
        self.recording.run()
        return np.frombuffer(self.download.view, np.float32).copy()

    def expected(self, x: Floats) -> npt.NDArray[np.float64]:
        y = x.astype(np.float64)
        for _ in range(self.steps):
            y = 2.0 * y + 1.0
        return y


def integers(count: int, seed: int = 0) -> Floats:
    """Small integers, so that f32 results are exact."""
    return np.random.default_rng(seed).integers(-99, 99, count).astype(np.float32)


def long_work(device: _bridge.Device, spirv: bytes, seconds: float) -> _bridge.Recording:
    """A recording that keeps the device busy for about `seconds`, longer where others use it, measured on this device
    first, by the fastest of a few runs.

    Its dispatches take a few milliseconds each, by two loops: lavapipe ends every loop after 65535 iterations.
    """
    steps, groups, dispatch_s = 60_000, 64, 0.005
    nbytes = 4 * 8 * groups
    state = device.buffer(nbytes, "device")
    pipeline = device.pipeline(spirv, 1, 8)

    def record(dispatches: int, repeats: int) -> _bridge.Recording:
        r = device.recording()
        r.fill(state, 0, nbytes, 1)
        for _ in range(dispatches):
            r.barrier(["transfer", "compute"], ["compute"])
            r.dispatch(pipeline, [(state, 0, nbytes)], struct.pack("II", repeats, steps), (groups, 1, 1))
        r.end()
        return r

    record(1, 1).run()
    probe, times_s = record(20, 1), []
    for _ in range(5):
        start = time.perf_counter()
        probe.run()
        times_s.append(time.perf_counter() - start)
    once_s = min(times_s) / 20
    repeats = max(1, round(dispatch_s / once_s))
    return record(max(2, round(seconds / (repeats * once_s))), repeats)
