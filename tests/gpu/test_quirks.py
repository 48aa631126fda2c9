"""Each quirk row of a driver that tests run on is shown here: when the driver is mended, its test fails and the row
can go. The rows of other drivers have a command that shows them (tests/pure/test_quirk_rows.py)."""

import dataclasses

import numpy as np
import pytest

from vkconv.backend.executable import Executable
from vkconv.backend.runtime import open_device
from vkconv.check import check_call
from vkconv.check.inputs import draw
from vkconv.device import load_device
from vkconv.glslang import compile_shader
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.kernel import Shader
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.commands import Barrier
from vkconv.plan.planner import Options, plan

pytestmark = pytest.mark.drivers
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


def test_every_quirk_of_lavapipe_has_its_reproducer_here():
    assert {q.id for q in load_device("lavapipe").quirks} == {"llvmpipe-loop-limit", "llvmpipe-in-order"}


def test_llvmpipe_leaves_long_loops_early(device, tmp_path):
    live = open_device(device)
    limit = live.device.max_loop_iterations
    if limit is None:
        assert loop_total(live, tmp_path, 200_000) == 300_000
        pytest.skip(f"{live.device.name} runs its loops to their end")
    assert loop_total(live, tmp_path, limit - 1) == (limit - 1) * 3 // 2
    assert loop_total(live, tmp_path, 2 * limit) < 3 * limit, "the driver was mended: drop the quirk's row"


def test_without_quirks_a_long_sum_is_planned_and_comes_out_wrong(device):
    """What `vkconv check ... --no-quirks` shows: the row is what keeps the route from being taken."""
    call = parse_call("reduce:x=1x3000000,op=sum,axes=1", OPS)
    facts = open_device(device).device
    if facts.max_loop_iterations is None:
        pytest.skip(f"{facts.name} runs its loops to their end")
    _, checked = check_call(call, draw(call, 1), device=device, route="serial", quirks=False)
    assert not checked.ok
    _, checked = check_call(call, draw(call, 1), device=device)
    assert checked.ok


def test_llvmpipe_hides_a_missing_barrier(device, validation):
    """Two dependent dispatches without the barrier between them: right here, and a hazard to the validation layer."""
    if "llvmpipe-in-order" not in {q.id for q in open_device(device).device.quirks}:
        pytest.skip("the device may really run them at once")
    x = np.random.default_rng(0).standard_normal((64, 1024), np.float32)
    nodes = (Node("one", "neg", ("x",), ("a",)), Node("two", "neg", ("a",), ("y",)))
    graph = Graph({"x": TensorSpec(x.shape)}, ("y",), nodes)
    live = open_device(device)
    planned = plan(graph, live.device, Options(passes=False))
    racing = dataclasses.replace(planned.plan, run=tuple(c for c in planned.plan.run if not isinstance(c, Barrier)))
    executable = Executable(racing, live, planned.constants, poison=True)
    assert executable.run({"x": x})["y"].tobytes() == x.tobytes()
    executable.close()
    if validation.active:
        assert "SYNC-HAZARD" in validation.take()
