"""shaders/include/reduction.glsl by itself: every form, any number of lanes, workspaces used again, values that are no
numbers, and lanes that have no part in it."""

import shutil

import numpy as np
import pytest

from vkconv.backend import _bridge
from vkconv.core import DType
from vkconv.glsl import shader_dir
from vkconv.glslang import compile_shader
from vkconv.kernel import Shader

pytestmark = pytest.mark.gpu

# Four reductions one after the other through one workspace: without its barriers they would read each other's slots
# (rocMLIR#1853). Every lane stores what it got.
ALL = """#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "reduction.glsl"
layout(set = 0, binding = 0) readonly restrict buffer X { ELEM x[]; };
layout(set = 0, binding = 1) writeonly restrict buffer Y { ELEM y[]; };
REDUCTION_SPACE(space, ELEM)
REDUCTION(total, ELEM, space, REDUCTION_ADD)
REDUCTION(peak, ELEM, space, REDUCTION_MAX)
REDUCTION(least, ELEM, space, REDUCTION_MIN)
REDUCTION(product, ELEM, space, REDUCTION_MUL)
void main() {
    uint at = flat_index();
    ELEM v = x[at];
    y[4 * at] = total(v);
    y[4 * at + 1] = peak(v);
    y[4 * at + 2] = least(v);
    y[4 * at + 3] = product(v);
}
"""
# COUNT by STRIDE of the workgroup's lanes, each column on its own; the other lanes bring NaN.
STRIDED = """#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "reduction.glsl"
layout(constant_id = 3) const uint COUNT = 1;
layout(constant_id = 4) const uint STRIDE = 1;
layout(set = 0, binding = 0) readonly restrict buffer X { vec4 x[]; };
layout(set = 0, binding = 1) writeonly restrict buffer Y { vec4 y[]; };
REDUCTION_SPACE(space, vec4)
REDUCTION_STRIDED(total, vec4, space, REDUCTION_ADD)
REDUCTION_STRIDED(peak, vec4, space, REDUCTION_MAX)
void main() {
    uint at = flat_index();
    uint index = gl_LocalInvocationID.x / STRIDE;
    y[2 * at] = total(x[at], index, COUNT, STRIDE);
    y[2 * at + 1] = peak(x[at], index, COUNT, STRIDE);
}
"""
NUMPY = (np.sum, np.max, np.min, np.prod)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("shaders")
    shutil.copytree(shader_dir() / "include", made / "include")
    (made / "all.comp").write_text(ALL)
    (made / "strided.comp").write_text(STRIDED)
    return made


@pytest.fixture(scope="module")
def bridge():
    with _bridge.Device(0) as opened:
        yield opened


def run(bridge, folder, shader, x, y, local, spec=()):
    """``y`` after a launch with a workgroup of ``local`` lanes for every row of ``x``, over NaN bits."""
    source, target = bridge.buffer(x.nbytes, "upload"), bridge.buffer(y.nbytes, "download")
    np.frombuffer(source.view, x.dtype)[:] = x.reshape(-1)
    pipeline = bridge.pipeline(compile_shader(shader, folder), 2, 0, [local, 1, 1, *spec])
    recording = bridge.recording()
    recording.fill(target, 0, y.nbytes, 0x7FC00BAD)
    recording.barrier(["transfer", "host"], ["compute"])
    recording.dispatch(pipeline, [(source, 0, x.nbytes), (target, 0, y.nbytes)], b"", (len(x), 1, 1))
    recording.barrier(["compute"], ["host"])
    recording.end()
    runs = []
    for _ in range(2):
        recording.run()
        runs.append(np.frombuffer(target.view, y.dtype).reshape(y.shape).copy())
    assert runs[0].tobytes() == runs[1].tobytes()
    return runs[0]


@pytest.mark.parametrize("local", [1, 2, 3, 8, 13, 33, 100, 128, 255])
@pytest.mark.parametrize("dtype", [DType.F32, DType.I32])
@pytest.mark.parametrize("form", ["TREE", "SUBGROUP"])
def test_all_lanes_get_what_numpy_gives(form, dtype, local, bridge, folder):
    rng = np.random.default_rng(local)
    x = rng.integers(1, 10, (5, local)).astype(dtype.numpy) * rng.choice([-1, 1], (5, local)).astype(dtype.numpy)
    x[0] = rng.choice([-9, -1], local)  # all negative: a maximum that starts at 0 is wrong (rocMLIR#1310)
    x[:, 7:] = np.sign(x[:, 7:])
    got = run(
        bridge,
        folder,
        Shader("all", dtype, ((f"REDUCTION_{form}", ""),)),
        x,
        np.empty((5, local, 4), x.dtype),
        local,
    )
    for k, function in enumerate(NUMPY):
        want = function(x, axis=1, dtype=x.dtype) if k in (0, 3) else function(x, axis=1)
        np.testing.assert_array_equal(got[..., k], np.broadcast_to(want[:, None], (5, local)))


@pytest.mark.parametrize("form", ["TREE", "SUBGROUP"])
def test_values_that_are_no_numbers(form, bridge, folder):
    x = np.random.default_rng(3).standard_normal((4, 40)).astype(np.float32)
    x[0, 17], x[1], x[2], x[3, 39] = np.nan, -np.inf, np.nan, np.inf
    got = run(
        bridge, folder, Shader("all", defines=((f"REDUCTION_{form}", ""),)), x, np.empty((4, 40, 4), np.float32), 40
    )
    for k, function in enumerate(NUMPY[:3]):
        want = function(x.astype(np.float64), axis=1)
        np.testing.assert_array_equal(got[[0, 1, 2], 7, k], want[:3])
    assert got[3, 0, 1] == np.inf and got[3, 0, 0] == np.inf and got[3, 0, 2] == x[3].min()


# rocMLIR#2447: 256 lanes of which 192 (48 by 4) have something to do; the other lanes are not to touch the slots.
@pytest.mark.parametrize(
    ("local", "count", "stride"),
    [(256, 48, 4), (20, 20, 1), (120, 24, 5), (60, 20, 3), (24, 4, 6), (33, 1, 8), (8, 3, 1)],
)
def test_lanes_without_a_part_touch_nothing(local, count, stride, bridge, folder):
    rng = np.random.default_rng(count)
    x = np.full((3, local, 4), np.nan, np.float32)
    x[:, : count * stride] = rng.integers(-9, 10, (3, count * stride, 4))
    got = run(
        bridge,
        folder,
        Shader("strided", defines=(("REDUCTION_TREE", ""),)),
        x,
        np.empty((3, local, 2, 4), np.float32),
        local,
        (count, stride),
    )
    part = x[:, : count * stride].reshape(3, count, stride, 4)
    for k, function in enumerate((np.sum, np.max)):
        want = np.broadcast_to(function(part, axis=1, keepdims=True), part.shape)
        np.testing.assert_array_equal(got[:, : count * stride, k].reshape(part.shape), want)
    assert np.isnan(got[:, count * stride :]).all()
