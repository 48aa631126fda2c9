"""Every case of every elementwise, layout, reduction and sampling op: call strings, programs and routes, no Vulkan."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from vkconv.call import Call
from vkconv.device import Device
from vkconv.ops.core.base import Op
from vkconv.ops.core.calls import parse_call
from vkconv.ops.kernels.strided import STRIDED_COPY, merge
from vkconv.ops.movement import alias, gather, host, layout, pad
from vkconv.ops.movement.scatter_strided import SCATTER_STRIDED
from vkconv.ops.norm import batch, normalize, softmax
from vkconv.ops.pointwise import cast, select
from vkconv.ops.pointwise.binary import BINARY_OPS, TABLE
from vkconv.ops.pointwise.unary import UNARY_OPS
from vkconv.ops.reduce import op as reduce
from vkconv.ops.reduce.problem import FUNCTIONS
from vkconv.ops.spatial import resize
from vkconv.program import Dispatch
from vkconv.route import Route, choose, judge

SHADERS = Path(__file__).parents[3] / "shaders"
MODULES = (alias, cast, gather, host, layout, normalize, batch, pad, reduce, resize, select, softmax)
OPS = {
    op.name: op
    for op in (*(v for m in MODULES for v in vars(m).values() if isinstance(v, Op)), *UNARY_OPS, *BINARY_OPS)
} | {op.name: op for op in select.COMPARE_OPS}
CASES = [text for op in OPS.values() for text in op.cases]


def device(kind: str = "CPU", invocations: int = 128) -> Device:
    """A device with nothing but what Vulkan promises every device."""
    limits = {
        "maxComputeWorkGroupCount": [65535] * 3,
        "maxComputeWorkGroupInvocations": invocations,
        "maxComputeWorkGroupSize": [invocations, invocations, 64],
        "maxComputeSharedMemorySize": 16384,
        "maxPerStageDescriptorStorageBuffers": 4,
        "maxStorageBufferRange": 1 << 27,
        "minStorageBufferOffsetAlignment": 256,
    }
    properties = {"deviceName": "t", "vendorID": 0, "deviceType": f"VK_PHYSICAL_DEVICE_TYPE_{kind}", "limits": limits}
    return Device({"properties": {"VkPhysicalDeviceProperties": properties}})


def call_of(text: str) -> Call:
    return parse_call(text, OPS)


def test_every_op_has_cases_and_a_way_to_be_computed() -> None:
    for op in OPS.values():
        assert op.cases and op.doc, op.name
        assert bool(op.routes) + op.alias + (op.name in ("shape", "size", "eye_like", "range")) == 1, op.name


@pytest.mark.parametrize("op", OPS)
def test_references_have_the_inferred_shapes(op: str) -> None:
    rng = np.random.default_rng(3)
    for call in map(call_of, OPS[op].cases):
        arrays = {
            name: None if spec is None else rng.integers(0, 2, spec.dims).astype(spec.dtype.numpy)
            for name, spec in call.operands.items()
        }
        outputs = OPS[op].reference(call, arrays)
        assert [np.shape(y) for y in outputs] == [spec.dims for spec in call.outputs.values()]


@pytest.mark.parametrize("op", [name for name, op in OPS.items() if op.routes])
def test_programs_keep_to_their_declarations_and_to_the_least_limits(op: str) -> None:
    for text in OPS[op].cases:
        keeps_to_its_declaration(text)


def keeps_to_its_declaration(text: str) -> None:
    call, smallest = call_of(text), device()
    names = {*(n for n, s in call.operands.items() if s is not None), *call.outputs}
    allowed = [r for r in OPS[call.op].routes if judge(r, call, smallest).allowed]
    assert allowed and allowed[-1] is OPS[call.op].routes[-1]
    for route in allowed:
        program = route.build(call, smallest)
        written = {b.buffer for step in program.steps for b in step.binds if b.access == "w"}
        assert written >= {n for n, s in call.outputs.items() if s.size}
        for step in program.steps:
            assert step.shader in route.shaders
            assert len(list(SHADERS.glob(f"*/{step.shader.stem}.comp"))) == 1
            assert {b.buffer for b in step.binds} <= names | set(program.scratch)
            assert len(step.push_bytes) <= 128
            assert math.prod(step.local) <= 128 and max(step.groups) <= 65535


def whole_words(buffer: np.ndarray, words: int) -> np.ndarray:
    """A view of a buffer as rows of so many words, without what is left over."""
    return buffer[: buffer.size // words * words].reshape(-1, words)


def copied(step: Dispatch, buffers: dict[str, np.ndarray]) -> None:
    """What shaders/kernels/strided_copy.comp does, from its push constants."""
    dims, xs, ys = (np.array(step.push[name][: step.constants["RANK"]]) for name in ("n", "xs", "ys"))
    index = np.indices(dims).reshape(len(dims), -1)
    words = 4 if step.constants["VEC4"] else 1
    x, y = (whole_words(buffers[step.buffers[name]], words) for name in "xy")
    y[step.push["y_base"] + ys @ index] = x[step.push["x_base"] + xs @ index]


@pytest.mark.parametrize(
    "text", [t for t in CASES if STRIDED_COPY in {s for r in OPS[t.partition(":")[0]].routes for s in r.shaders}]
)
def test_strided_copies_move_what_the_reference_moves(text: str) -> None:
    call = call_of(text)
    rng = np.random.default_rng(5)
    arrays = {n: rng.integers(-99, 99, s.dims).astype(np.int64) for n, s in call.operands.items() if s is not None}
    route = next(r for r in OPS[call.op].routes if STRIDED_COPY in r.shaders)
    program = route.build(call, device())
    sizes = {n: s.size for n, s in call.outputs.items()} | {n: b // 4 for n, b in program.scratch.items()}
    buffers = {n: a.reshape(-1) for n, a in arrays.items()} | {n: np.full(k, 12345) for n, k in sizes.items()}
    for step in program.steps:
        copied(step, buffers)
    for (name, spec), want in zip(call.outputs.items(), OPS[call.op].reference(call, arrays), strict=True):
        assert np.array_equal(buffers[name].reshape(spec.dims), want)


@pytest.mark.parametrize(
    ("text", "vec4"),
    [
        ("transpose:x=2x3x8,perm=1x0x2", True),
        ("transpose:x=2x3x6,perm=1x0x2", False),  # rows begin between vec4
        ("transpose:x=4x8,perm=1x0", False),  # what is read is not in a row
        ("transpose:x=2x3x8:i64,perm=1x0x2", False),
        ("slice:x=9x8,starts=4,ends=8,axes=1,steps=1", True),
        ("slice:x=9x8,starts=3,ends=7,axes=1,steps=1", False),
    ],
)
def test_cpu_drivers_copy_runs_of_whole_vec4_by_vec4(text: str, vec4: bool) -> None:
    call = call_of(text)
    for kind, expected in (("CPU", vec4), ("DISCRETE_GPU", False)):
        route = next(r for r in OPS[call.op].routes if r.name == "strided_copy")
        (step,) = route.build(call, device(kind)).steps
        assert step.constants["VEC4"] == expected


def test_merging_joins_only_what_every_tensor_steps_through_as_one() -> None:
    assert merge((2, 3, 4), (12, 4, 1), (12, 4, 1)).dims == (24,)
    assert merge((2, 3, 4), (12, 4, 1), (0, 1, 0)).dims == (2, 3, 4)
    assert merge((2, 3, 4, 5), (60, 20, 5, 1), (0, 1, 0, 0)).dims == (2, 3, 20)
    assert merge((1, 1), (7, 7)).dims == (1,)
    assert merge((3, 4), (-4, -1)).strides == ((-1,),)


@pytest.mark.parametrize(
    ("text", "kind", "route"),
    [
        ("reduce:x=1x480x3x160,op=mean,axes=2x3", "CPU", "serial"),
        ("reduce:x=1x480x3x160,op=mean,axes=2x3", "DISCRETE_GPU", "tree"),
        ("reduce:x=1000x3,axes=1", "DISCRETE_GPU", "serial"),
        ("softmax:x=1x40x6625", "CPU", "serial"),
        ("softmax:x=1x40x6625", "INTEGRATED_GPU", "one_pass"),
        ("softmax:x=2048x50257", "DISCRETE_GPU", "workgroup"),
        ("softmax:x=4x1000003", "DISCRETE_GPU", "split_rows"),
        ("softmax:x=1x21x512x512,axis=1", "DISCRETE_GPU", "one_lane"),
        ("softmax:x=1x81x512x512,axis=1", "DISCRETE_GPU", "serial"),
        ("softmax:x=66000x3", "DISCRETE_GPU", "one_lane"),
        ("layer_norm:x=40x120,scale=120,bias=120", "DISCRETE_GPU", "one_pass"),
        ("instance_norm:x=32x64x56x56,scale=64,bias=64", "DISCRETE_GPU", "one_pass"),
    ],
)
def test_rows_go_to_workgroups_on_gpus_where_they_are_long(text: str, kind: str, route: str) -> None:
    call = call_of(text)
    assert choose(OPS[call.op].routes, call, device(kind)).route.name == route


def test_the_workgroup_route_is_refused_where_workgroups_are_too_small() -> None:
    route: Route = OPS["softmax"].routes[0]
    verdict = judge(route, call_of("softmax:x=5x500"), device("DISCRETE_GPU", invocations=64))
    assert not verdict.allowed and "128 invocations" in verdict.refused_by and verdict.actual == "64"


def test_wide_integers_are_refused_on_the_device_by_name() -> None:
    call = parse_call("scatter_strided:x=5:i64,shape=13,offset=1,stride=3", {"scatter_strided": SCATTER_STRIDED})
    verdict = judge(SCATTER_STRIDED.routes[0], call, device())
    assert not verdict.allowed and "or i32 or u32 elements" in verdict.refused_by and "x is i64" in verdict.actual


def test_function_ids_are_those_of_the_shaders() -> None:
    lines = re.search(r"const uint (SUM = 0.*);", (SHADERS / "reduce" / "reduce.glsl").read_text())
    assert lines
    assert dict(part.lower().split(" = ") for part in lines[1].split(", ")) == {
        k: str(v[0]) for k, v in FUNCTIONS.items()
    }
    kinds = re.search(r"const uint (F32 = 0.*);", (SHADERS / "pointwise" / "cast.comp").read_text())
    assert kinds
    assert [part.split(" = ") for part in kinds[1].lower().split(", ")] == [
        [k, str(i)] for i, k in enumerate(cast.KINDS)
    ]
    assert [row.id for row in TABLE] == list(range(len(TABLE)))
