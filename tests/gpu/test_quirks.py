"""Each quirk row has a kernel here that shows it: when a driver is mended, its test fails and the row can go."""

import pytest

from vkconv.backend.runtime import open_device
from vkconv.compiler import compile_shader
from vkconv.device.quirks import QUIRKS
from vkconv.shader import Shader

LOOP = """#version 450
layout(local_size_x = 1) in;
layout(set = 0, binding = 0) writeonly buffer Y { uint y; };
layout(push_constant) uniform Push { uint n; };
void main() {
    uint total = 0;
    for (uint i = 0; i < n; i++) total += (i & 1u) + 1u;
    y = total;
}
"""


def loop_total(live, folder, n):
    """What a loop of n steps sums up, of 3 for every two steps, on the device."""
    (folder / "loop.comp").write_text(LOOP)
    pipeline = live.handle.pipeline(compile_shader(Shader("loop"), folder), 1, 4, [])
    result = live.handle.buffer(4, "download")
    recording = live.handle.recording()
    recording.dispatch(pipeline, [(result, 0, 4)], n.to_bytes(4, "little"), (1, 1, 1))
    recording.barrier(["compute"], ["host"])
    recording.end()
    recording.run()
    return int.from_bytes(bytes(result.view), "little")


def test_every_quirk_has_its_reproducer_here():
    assert {q.id for q in QUIRKS} == {"llvmpipe-loop-limit"}


def test_llvmpipe_leaves_long_loops_early(device, tmp_path):
    live = open_device(device)
    limit = live.device.max_loop_iterations
    if limit is None:
        assert loop_total(live, tmp_path, 200_000) == 300_000
        pytest.skip(f"{live.device.name} runs its loops to their end")
    assert loop_total(live, tmp_path, limit - 1) == (limit - 1) * 3 // 2
    assert loop_total(live, tmp_path, 2 * limit) < 3 * limit, "the driver was mended: drop the quirk's row"
