"""Inputs and outputs in memory that host and kernels share: where, why, and what is left to copy."""

import copy
import itertools
import json
import re

import msgspec
import pytest
from flow import commands
from graph_kit import make_graph
from plan_kit import LAVAPIPE

from vkconv.core import ModelError, UsageError
from vkconv.device import Device, load_device, shipped_devices
from vkconv.device.facts import HOST_CACHED, HOST_COHERENT, HOST_VISIBLE, LOCAL
from vkconv.plan.commands import Copy
from vkconv.plan.explain import explain_plan, explain_plan_data
from vkconv.plan.planner import Options, plan
from vkconv.plan.transfers import _IN_PLACE, COPYING, as_if_large, transfers

WRITES = (LOCAL, HOST_VISIBLE, HOST_COHERENT)
READS = (LOCAL, HOST_VISIBLE, HOST_CACHED)
UNCACHED_AMD = "VK_MEMORY_PROPERTY_DEVICE_UNCACHED_BIT_AMD"


def with_types(*types, device="mali-g715", heaps=((1 << 30, True),)):
    """A shipped device with other heaps (bytes, device-local) and memory types (heap, flags)."""
    facts = copy.deepcopy(dict(load_device(device).facts))
    flags = {True: ["VK_MEMORY_HEAP_DEVICE_LOCAL_BIT"], False: []}
    facts["memory"] = {
        "memoryHeaps": [{"size": size, "flags": flags[local]} for size, local in heaps],
        "memoryTypes": [{"heapIndex": heap, "propertyFlags": list(names)} for heap, *names in types],
    }
    return Device(facts)


def ways(device, staging=None, nbytes=1 << 20):
    found = transfers(device, staging, nbytes, nbytes)
    return found.inputs, found.outputs


@pytest.mark.parametrize(
    ("device", "want"),
    [
        (with_types((0, *WRITES)), (True, False)),  # from write-combined memory the host would read a word at a time
        (with_types((0, *READS)), (True, True)),  # not coherent: flushed and invalidated
        (with_types((0, *WRITES), (0, *READS)), (True, True)),
        (with_types((0, LOCAL), (0, HOST_VISIBLE, HOST_COHERENT, HOST_CACHED)), (False, False)),
        (with_types((0, *READS, UNCACHED_AMD)), (False, False)),
        (with_types((5, *READS)), (False, False)),  # a heap that is not there
        (with_types((0, *READS), heaps=((1 << 19, True),)), (False, False)),
    ],
    ids=itertools.count(),
)
def test_memory_types_decide(device, want):
    assert ways(device) == want
    assert ways(device, staging=False)[0] == want[0] and ways(device, staging="imported") == want
    assert ways(device, staging=True) == (False, False)


def test_a_file_without_types_has_what_vulkan_guarantees():
    """A type is DEVICE_LOCAL exactly where its heap is, and one is HOST_VISIBLE and HOST_COHERENT."""
    for name in shipped_devices():
        device = load_device(name)
        if "memoryTypes" not in device.facts["memory"]:
            heaps = device.facts["memory"]["memoryHeaps"]
            assert ways(device) == (all(heap["flags"] for heap in heaps), False), name


def test_behind_pcie_the_policy_says_no_and_may_be_overruled():
    h200 = load_device("h200")
    assert (ways(h200), ways(h200, staging=False)) == ((False, False), (True, True))
    assert "policy transfers.in_place" in transfers(h200, None, 4, 4).inputs_why
    assert transfers(h200, False, 4, 4).far_outputs and not transfers(LAVAPIPE, False, 4, 4).far_outputs
    assert transfers(h200, "imported", 4, 4).outputs_why == "no memory type is DEVICE_LOCAL, HOST_VISIBLE, HOST_CACHED"
    small = with_types((0, *READS), heaps=((1 << 19, True),))
    assert re.fullmatch(r"1\S* MiB are over the 512\S* KiB of that heap", transfers(small, None, 1 << 20, 4).inputs_why)


def test_few_bytes_need_no_staging_where_the_policy_says_so(monkeypatch):
    h200, row = load_device("h200"), _IN_PLACE.of(load_device("h200"))
    few = msgspec.structs.replace(row, inputs_to_bytes=1 << 20, outputs_to_bytes=4096)
    monkeypatch.setattr(_IN_PLACE, "of", lambda device: few)
    found = transfers(h200, None, 1 << 20, 4096)
    assert found.inputs and found.outputs and found.far_outputs
    found = transfers(h200, None, (1 << 20) + 4, 4100)
    assert (found.inputs, found.outputs, found.far_outputs) == (False, False, False)
    graph = make_graph({"x": (2, 3)}, [("relu", "x", "y"), ("abs", "y", "z"), ("neg", "x", "u")], "y z u")
    made = plan(graph, h200, Options(dtype="f16")).plan
    kinds = {name: kind for name, (_, kind) in made.buffers.items()}
    assert made.narrowed["x"].port.buffer == "narrowed:x" and kinds["narrowed:x"] == "input"
    # What another kernel reads is cast by one as well, into memory that none reads.
    ports = [made.out_port(y).buffer for y in "yzu"]
    assert ports == ["output:y", "widened:z", "widened:u"] and {kinds[port] for port in ports} == {"output"}
    assert not [c for c in made.run if isinstance(c, Copy)]
    read = plan(graph, h200, Options(passes=False)).plan  # another kernel reads y
    assert [c.node for c in read.run if isinstance(c, Copy)] == ["download y"]


def test_pages_of_the_caller_are_imported_where_memory_is_one_and_the_array_is_large():
    when = transfers(LAVAPIPE, None, 1 << 24, 4).imported
    assert when and when.least_bytes(3) == when.from_bytes + 3 * when.bytes_per_launch
    nbytes = when.least_bytes(1)
    for size, want in ((nbytes // 4, ("x",)), (nbytes // 4 - 1, ())):
        graph = make_graph({"x": (size,)}, [("relu", "x", "y")], "y")
        found = plan(graph, LAVAPIPE).plan
        assert found.imported == want
        assert ("; x read in the caller's own pages" in explain_plan(found).title) == bool(want)
        assert plan(graph, LAVAPIPE, Options(staging="imported")).plan.imported == ("x",)
        for options in (Options(share_memory=False), Options(staging=True), Options(staging=False)):
            assert plan(graph, LAVAPIPE, options).plan.imported == ()
    facts = copy.deepcopy(dict(LAVAPIPE.facts))
    del facts["extensions"]["VK_EXT_external_memory_host"]
    assert not transfers(Device(facts), "imported", nbytes, 4).imported
    assert not transfers(load_device("h200"), None, 1 << 28, 4).imported
    assert transfers(load_device("h200"), "imported", 1 << 20, 4).imported  # asked for


def test_large_inputs_are_streamed_behind_pcie_and_small_ones_are_not():
    h200 = load_device("h200")
    from_bytes = next(row.streamed_from_bytes for row in _IN_PLACE.every())
    assert [transfers(h200, None, n, 4).streamed for n in (from_bytes - 1, from_bytes)] == [False, True]
    assert not transfers(h200, None, 4, 1 << 24).streamed_outputs  # an H100 was slower with several runs in flight
    assert transfers(h200, "streamed", 4, 1 << 24).streamed_outputs
    assert not transfers(h200, True, from_bytes, 4).streamed
    assert not transfers(LAVAPIPE, None, 1 << 28, 4).streamed  # one memory
    facts = copy.deepcopy(dict(h200.facts))
    facts["features"]["VkPhysicalDeviceTimelineSemaphoreFeatures"] = {"timelineSemaphore": False}
    without = Device(facts)
    assert not transfers(without, None, from_bytes, 4).streamed
    assert not transfers(without, "streamed", 4, 1 << 24).streamed_outputs
    found = transfers(without, "streamed", from_bytes, 4)
    assert (found.streamed, found.inputs_why) == (False, "the device has no timeline semaphores to stream with")
    with pytest.raises(UsageError, match="'stream'"):
        transfers(h200, "stream", 4, 4)


@pytest.mark.parametrize("nbytes", [0, 1, 1 << 20, 1 << 40])
def test_threads_share_what_is_worth_one_each(nbytes):
    for copying in COPYING.every():
        threads = copying.threads_for(nbytes)
        assert 1 <= threads <= copying.threads
        assert threads == 1 or nbytes >= threads * copying.bytes_per_thread


# name: inputs, nodes, outputs, the copies that are left
GRAPHS = {
    "straight": ({"x": (5, 7)}, [("relu", "x", "y")], "y", []),
    "an input is no output": ({"x": (5, 7)}, [("relu", "x", "y")], "y x", ["download x"]),
    "a view of an input": ({"x": (5, 7)}, [("flatten", "x", "y")], "y", ["download y"]),
    "two names of one value": ({"x": (5, 7)}, [("relu", "x", "a"), ("flatten", "a", "y")], "a y", []),
    "read again": ({"x": (5, 7)}, [("relu", "x", "a"), ("softmax", "a", "y", {"axis": 1})], "a y", []),
    "a part of a larger value": (
        {"x": (8, 16)},
        [("relu", "x", "a"), ("slice", "a", "y", {"starts": (0,), "ends": (2,), "axes": (0,)})],
        "y",
        ["download y"],
    ),
    "nothing": ({"x": (0, 7)}, [("relu", "x", "y")], "y", []),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_only_what_must_be_is_copied(name):
    inputs, nodes, outputs, copies = GRAPHS[name]
    graph = make_graph(inputs, nodes, outputs)
    for share_memory in (True, False):
        result = plan(graph, LAVAPIPE, Options(share_memory=share_memory)).plan
        assert [c.node for c in commands(result.run, Copy)] == copies
    staged = plan(graph, LAVAPIPE, Options(staging=True)).plan
    assert not {kind for _, kind in staged.buffers.values()} & {"input", "output"}
    assert result.memory.peak_bytes <= staged.memory.peak_bytes


@pytest.mark.parametrize("name", GRAPHS)
def test_streamed_inputs_lie_in_staging_and_in_memory_of_their_own(name):
    inputs, nodes, outputs, _ = GRAPHS[name]
    result = plan(make_graph(inputs, nodes, outputs), LAVAPIPE, Options(staging="streamed")).plan
    assert not [c for c in commands(result.run, Copy) if c.node.startswith("upload")]
    kinds = {kind for name, (_, kind) in result.buffers.items() if name.startswith("input:")}
    assert kinds == ({"streamed"} if result.memory.upload_bytes > 8 else {"upload"})
    for side, total in (("input", result.memory.upload_bytes), ("output", result.memory.download_bytes)):
        ports = [entry for name, entry in result.buffers.items() if name.startswith(f"{side}:")]
        assert total == sum(nbytes * (2 if kind == "streamed" else 1) for nbytes, kind in ports)
    left = [c.node for c in commands(result.run, Copy)]
    assert left == [copy for copy in GRAPHS[name][3] if copy.startswith("download")]
    for c in GRAPHS[name][3]:
        assert result.buffers[f"output:{c.removeprefix('download ')}"][1] == "download"


@pytest.mark.parametrize(("device", "far"), [("h100", True), ("lavapipe", False), ("mali-g715", False)])
def test_times_of_small_calls_are_of_the_memory_that_large_ones_have(device, far):
    device = load_device(device)
    small, large = transfers(device, None, 4096, 4096), transfers(device, None, 1 << 24, 1 << 24)
    timed = transfers(device, as_if_large(device), 4096, 4096)
    assert small.far_outputs == far and not timed.far_outputs
    assert (timed.inputs, timed.outputs) == (large.inputs, large.outputs)


def test_explain_says_how_inputs_and_outputs_move():
    result = plan(make_graph(*GRAPHS["straight"][:3]), LAVAPIPE).plan
    title = explain_plan(result).title
    assert "inputs are written where kernels read them (policy transfers.in_place" in title
    assert explain_plan_data(result)["transfers"] == {
        "inputs": True,
        "inputs_why": result.transfers.inputs_why,
        "outputs": True,
        "outputs_why": result.transfers.outputs_why,
        "streamed": False,
        "narrowed": True,
        "imported": {"from_bytes": 1572864, "bytes_per_launch": 131072},
        "streamed_outputs": False,
        "far_outputs": False,
        "widened": True,
    }
    streamed = plan(make_graph(*GRAPHS["straight"][:3]), LAVAPIPE, Options(staging="streamed")).plan
    assert explain_plan_data(streamed)["transfers"]["streamed"]
    assert "inputs are streamed through staging (asked for)" in explain_plan(streamed).title


@pytest.mark.parametrize(
    "types",
    [{}, [{"heapIndex": 0}], [{"heapIndex": 16, "propertyFlags": []}], [{"heapIndex": 0, "propertyFlags": [1]}]],
)
def test_memory_types_of_a_file_are_checked(types, tmp_path):
    facts = copy.deepcopy(dict(load_device("mali-g715").facts))
    facts["memory"]["memoryTypes"] = types
    path = tmp_path / "phone.json"
    path.write_text(json.dumps({"schema": "vkconv.device/1", **facts}))
    with pytest.raises(ModelError, match=r"memory\.memoryTypes"):
        load_device(path)


def test_outputs_that_the_host_widens_count_as_they_leave():
    """On the H200 up to 64 KiB lie in memory of the host: 128,000 bytes of f32 are 64,000 of f16."""
    h200 = load_device("h200")
    assert transfers(h200, None, 1 << 20, 128_000, 128_000).far_outputs
    assert not transfers(h200, None, 1 << 20, 128_000, 0).far_outputs
    assert not transfers(h200, None, 1 << 20, 140_000, 128_000).far_outputs
