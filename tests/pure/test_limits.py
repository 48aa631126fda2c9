"""Device limits when planning: each one that a plan would exceed is refused with both numbers and the node."""

import math
import re
import time

import pytest
from graph_kit import f32, made_up_device, make_graph

from vkconv.core import LimitError
from vkconv.device import load_device
from vkconv.kernel import Field, Kernel, Shader, constants, reads
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.limits import check_dispatch
from vkconv.plan.planner import Options, plan
from vkconv.plan.single import call_graph, forcing
from vkconv.program import Dispatch

ADD = make_graph({"a": (1000, 33), "b": (33,)}, [("add", "a b", "y")], "y")


def test_the_graph_fits_a_device_with_ordinary_limits():
    assert plan(ADD, made_up_device()).plan.nodes[0].dispatches == 1


def taking(push=(), **launch):
    """A launch of a kernel with so many push constants, floats where the first of them is one, and a constant K."""
    kind = "float" if push and isinstance(push[0], float) else "int"
    words = tuple(Field(kind, f"p{i}") for i in range(len(push)))
    kernel = Kernel("s", (reads("float x"),), words, constants("float", K=0))
    named = {field.name: word for field, word in zip(words, push, strict=True)}
    return Dispatch(Shader(kernel), {"x": "x"}, push=named, **launch)


@pytest.mark.parametrize(
    ("limits", "named", "needed", "allowed"),
    [
        ({"maxComputeWorkGroupInvocations": 63}, "maxComputeWorkGroupInvocations", 64, 63),
        ({"maxComputeWorkGroupSize": [32, 64, 64]}, "maxComputeWorkGroupSize.x", 64, 32),
        ({"maxPushConstantsSize": 16}, "maxPushConstantsSize", None, 16),
        ({"maxPerStageDescriptorStorageBuffers": 2}, "maxPerStageDescriptorStorageBuffers", 3, 2),
        ({"maxComputeWorkGroupCount": [8, 4, 1]}, "maxComputeWorkGroupCount.y", None, 4),
        ({"maxStorageBufferRange": 131999}, "maxStorageBufferRange", 132000, 131999),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)
def test_a_broken_limit_is_named_with_both_numbers(limits, named, needed, allowed):
    with pytest.raises(LimitError) as error:
        plan(ADD, made_up_device(**limits))
    text = str(error.value)
    assert named in text and "add_y" in text and re.search(rf"\b{allowed}\b", text)
    if needed is not None:
        assert re.search(rf"\b{needed}\b", text)


def test_a_limit_that_a_device_file_assumes_is_said_to_be_assumed():
    """maxStorageBufferRange of the Mali-G715's file is WebGPU's default; its invocations are from a report."""
    mali = load_device("mali-g715")
    assert mali.assumes("maxStorageBufferRange") and not mali.assumes("maxComputeWorkGroupInvocations")
    large = make_graph({"a": (1 << 26,)}, [("relu", "a", "y")], "y")
    with pytest.raises(LimitError, match=r"134217728 \(assumed by its device file: a real one may allow more\); use"):
        plan(large, mali)
    with pytest.raises(LimitError, match="134217728; use"):
        plan(large, made_up_device(maxStorageBufferRange=1 << 27), Options(pieces=1))


@pytest.mark.parametrize(
    ("dispatch", "named"),
    [
        ({"shared_bytes": 40000}, "maxComputeSharedMemorySize = 40000, .* allows 32768"),
        ({"local": (1, 1, 2000)}, "maxComputeWorkGroupInvocations = 2000, .* allows 1024"),
        ({"local": (1, 1, 100)}, "maxComputeWorkGroupSize.z = 100, .* allows 64"),
        ({"groups": (1, 1, 70000)}, "maxComputeWorkGroupCount.z = 70000, .* allows 65535"),
        ({"push": (0,) * 33}, "maxPushConstantsSize = 132, .* allows 128"),
        ({"push": (1 << 32,)}, "the number 4294967296, and shaders take 32 bits, .* to 4294967295"),
        ({"constants": {"K": -(1 << 31) - 1}}, "the number -2147483649, .* -2147483648 to"),
        ({"push": (1e300,)}, r"the number 1e\+300, and shaders take f32, at most 3\.40282346\d+e\+38"),
        ({"constants": {"K": -1e39}}, r"the number -1e\+39, and shaders take f32"),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)
def test_a_dispatch_over_a_limit_is_refused(dispatch, named):
    device = made_up_device(
        maxComputeSharedMemorySize=32768,
        maxComputeWorkGroupInvocations=1024,
        maxComputeWorkGroupSize=[1024, 1024, 64],
        maxComputeWorkGroupCount=[65535] * 3,
        maxPushConstantsSize=128,
    )
    whole = {"groups": (1, 1, 1), "local": (64, 1, 1), "shared_bytes": 0} | dispatch
    with pytest.raises(LimitError, match=f"here: s.f32 needs {named}"):
        check_dispatch("here", taking(**whole), device)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 3.4028234663852886e38, -1e-60])
def test_numbers_that_f32_has_or_rounds_pass(value):
    words = taking(groups=(1, 1, 1), local=(64, 1, 1), push=(value,), constants={"K": value})
    check_dispatch("here", words, made_up_device())


def test_an_attribute_beyond_f32_is_refused_with_its_node():
    graph = make_graph({"x": (3,)}, [("clip", "x", "y", {"a": -1e300, "b": 6.0})], "y")
    with pytest.raises(LimitError, match=r"g, clip_y \(clip:.*needs the number -1e\+300"):
        plan(graph, made_up_device())


@pytest.mark.parametrize(
    ("text", "forced", "advice"),
    [
        (
            "conv2d:x=1x8000x3x3,w=1x8000x3x3",
            "direct",
            "use smaller shapes, or force .* --route conv2d=fully_connected",
        ),
        ("conv2d:x=1x999999x3x3,w=1x999999x3x3", None, "use smaller shapes"),
        ("pool2d:x=1x1x300x300,kind=avg,k=300", None, "use smaller shapes"),
    ],
)
def test_the_advice_names_another_route_only_where_one_fits(text, forced, advice):
    lavapipe, call = load_device("lavapipe"), parse_call(text, OPS)
    with pytest.raises(LimitError, match=rf"loop iterations .* = \d+, .* allows 65535; {advice}$"):
        plan(call_graph(call), lavapipe, forcing(forced))
    if "--route" in advice:
        plan(call_graph(call), lavapipe, forcing(advice.rpartition("=")[2]))


def test_limits_may_be_reached():
    plan(ADD, made_up_device(maxStorageBufferRange=132000, maxComputeWorkGroupInvocations=64))


def test_a_value_larger_than_an_allocation_is_refused_with_both_numbers():
    with pytest.raises(LimitError, match=r"add_y.*'[ay]' takes .*\(132000 bytes\).*\(100000 bytes\)"):
        plan(ADD, made_up_device(allocation=100000))


def test_a_value_out_of_all_proportion_is_refused_before_its_program_is_made():
    """By transposed_gemm it would have a million launches."""
    call = parse_call("conv_transpose2d:x=70000x16x1000x4,w=16x32x1x63,s=5x2,d=6", OPS)
    started = time.process_time()
    with pytest.raises(LimitError, match=r"node 'call': 'x' takes 16.7 GiB .*llvmpipe.* is 2.00 GiB .*; use smaller"):
        plan(call_graph(call), load_device("lavapipe"), forcing("transposed_gemm"))
    assert time.process_time() - started < 1


def test_values_that_fit_one_by_one_are_spread_over_allocations():
    memory = plan(ADD, made_up_device(allocation=140000), Options(staging=True)).plan
    assert [name for name in memory.buffers if name.startswith("activations:")] == ["activations:0", "activations:1"]


def test_a_plan_larger_than_the_device_is_refused_with_both_numbers():
    with pytest.raises(LimitError, match=r"g: activations and weights take .*\(26\d{4} bytes\).*\(200000 bytes\)"):
        plan(ADD, made_up_device(heap=200000))


@pytest.mark.parametrize("what", ["inputs", "outputs", "weights to load"])
def test_host_visible_buffers_are_allocations_too(what):
    many = " ".join(f"v{i}" for i in range(8))
    if what == "inputs":
        graph = make_graph({f"v{i}": (1000,) for i in range(8)}, [("concat", many, "y", {"axis": 0})], "v0")
    elif what == "outputs":
        graph = make_graph({"x": (1000,)}, [("relu", "x", f"v{i}") for i in range(8)], many)
    else:
        constants = {f"w{i}": f32(1000, seed=i) for i in range(8)}
        graph = make_graph(
            {"x": (1000,)},
            [("add", f"{'x' if i == 0 else f'v{i - 1}'} w{i}", f"v{i}") for i in range(8)],
            "v7",
            constants,
        )
    with pytest.raises(LimitError, match=rf"g: the {what} take .*\(32\d{{3}} bytes\).*\(20000 bytes\)"):
        plan(graph, made_up_device(allocation=20000))
