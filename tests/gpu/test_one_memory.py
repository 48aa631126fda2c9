"""Memory that host and device share: not coherent, written by runs one after the other, and without it."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from session_kit import assert_right, conv_graph, normals

import vkconv
from vkconv import Options, Session
from vkconv.backend.runtime import open_device
from vkconv.core import DType
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.plan import steps, transfers

pytestmark = pytest.mark.gpu

# Stands before the Vulkan loader: memory of type 0 is not coherent, and what the host maps of it is a copy, which flush
# and invalidate move; told to forget a direction, it moves nothing.
INCOHERENT = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vulkan.h>
#define REAL(name) ((PFN_##name)dlsym(dlopen("libvulkan.so.1", RTLD_NOW), #name))
enum { MOST = 4096 };
static struct { VkDeviceMemory memory; VkDeviceSize size; void *real, *copy; } held[MOST];
int forget_flush, forget_invalidate, flushes, invalidates;

static int find(VkDeviceMemory memory) {
    for (int i = 0; i < MOST; i++) if (held[i].memory == memory) return i;
    return -1;
}
void vkGetPhysicalDeviceMemoryProperties(VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties *memory) {
    REAL(vkGetPhysicalDeviceMemoryProperties)(device, memory);
    memory->memoryTypeCount = 2;
    memory->memoryTypes[1] = memory->memoryTypes[0];
    memory->memoryTypes[0].propertyFlags &= ~VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    memory->memoryTypes[1].propertyFlags &= ~VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
}
void vkGetBufferMemoryRequirements(VkDevice device, VkBuffer buffer, VkMemoryRequirements *need) {
    REAL(vkGetBufferMemoryRequirements)(device, buffer, need);
    need->memoryTypeBits = 3;
}
VkResult vkAllocateMemory(VkDevice device, const VkMemoryAllocateInfo *info, const VkAllocationCallbacks *calls,
                          VkDeviceMemory *memory) {
    VkMemoryAllocateInfo real = *info;
    real.memoryTypeIndex = 0;
    VkResult result = REAL(vkAllocateMemory)(device, &real, calls, memory);
    int i = find(VK_NULL_HANDLE);
    if (result == VK_SUCCESS && info->memoryTypeIndex == 0) {
        held[i].memory = *memory, held[i].size = info->allocationSize;
        held[i].copy = malloc(info->allocationSize);
        memset(held[i].copy, 0xFF, info->allocationSize);
    }
    return result;
}
VkResult vkMapMemory(VkDevice device, VkDeviceMemory memory, VkDeviceSize offset, VkDeviceSize size,
                     VkMemoryMapFlags flags, void **data) {
    VkResult result = REAL(vkMapMemory)(device, memory, offset, size, flags, data);
    int i = find(memory);
    if (i >= 0) held[i].real = *data, *data = held[i].copy;
    return result;
}
VkResult vkFlushMappedMemoryRanges(VkDevice device, uint32_t count, const VkMappedMemoryRange *ranges) {
    int i = find(ranges->memory);
    if (!forget_flush) memcpy(held[i].real, held[i].copy, held[i].size);
    flushes++;
    return VK_SUCCESS;
}
VkResult vkInvalidateMappedMemoryRanges(VkDevice device, uint32_t count, const VkMappedMemoryRange *ranges) {
    int i = find(ranges->memory);
    if (!forget_invalidate) memcpy(held[i].copy, held[i].real, held[i].size);
    invalidates++;
    return VK_SUCCESS;
}
void vkFreeMemory(VkDevice device, VkDeviceMemory memory, const VkAllocationCallbacks *calls) {
    int i = find(memory);
    if (memory != VK_NULL_HANDLE && i >= 0) free(held[i].copy), held[i].memory = VK_NULL_HANDLE;
    REAL(vkFreeMemory)(device, memory, calls);
}
"""

PROGRAM = """
import ctypes, sys
sys.path.insert(0, {folder!r})
import numpy as np
from session_kit import conv_graph, expected, normals
import vkconv, vkconv.functional
from vkconv.core import DType
stand_in = ctypes.CDLL(None)
number = lambda name: ctypes.c_int.in_dll(stand_in, name)

def are_right(outputs, x):
    return all(np.abs(np.asarray(outputs[n]) - want).max() < 1e-4 for n, want in expected(x).items())

def right(session, seed):
    x = normals(1, 3, 9, 11, seed=seed)
    return are_right(session.run({{"x": x}}), x)

def ways(session, seed):
    # arrays of the device in and out, runs in flight, views, functions; by name, whether each is right
    x = normals(1, 3, 9, 11, seed=seed)
    a = vkconv.array(x)
    flown = session.submit({{"x": x}}), session.submit({{"x": a}}, out="device")
    there = session.run({{"x": a}}, out="device")
    return {{
        "array": np.array_equal(a.numpy(), x),
        "view": np.array_equal(a[0, 1].numpy(), x[0, 1]),
        "array in": are_right(session.run({{"x": a}}), x),
        "view in": are_right(session.run({{"x": vkconv.array(np.stack([x, x]))[1]}}), x),
        "out": are_right(there, x),
        "dlpack": np.array_equal(np.from_dlpack(there["y"]), there["y"].numpy()),
        "submit": are_right(flown[0].result(), x),
        "submit, out": are_right(flown[1].result(), x),
        "reordered": are_right(session.run({{"x": x[:, :, ::-1].copy()[:, :, ::-1]}}), x),
        "function": np.array_equal(vkconv.functional.relu(a), np.maximum(x, 0)),
        "function, out": np.array_equal(vkconv.functional.relu(a, out="device").numpy(), np.maximum(x, 0)),
    }}

with vkconv.load(conv_graph()) as session:
    assert {{kind for _, kind in session.plan.buffers.values()}} == {{"device", "input", "output", "upload"}}
    assert all(right(session, seed) for seed in range(3))
    assert (number("flushes").value, number("invalidates").value) == (3, 6)
    for fault in ("forget_flush", "forget_invalidate"):
        number(fault).value = 1
        assert not right(session, 7), fault
        number(fault).value = 0
    assert right(session, 8)
    for seed in range(3):
        assert all(ways(session, seed).values()), ways(session, seed)
    number("forget_flush").value = 1
    assert not np.array_equal(vkconv.functional.relu(vkconv.array(normals(5, seed=1))), normals(5, seed=1).clip(0))
    assert not are_right(session.submit({{"x": normals(1, 3, 9, 11, seed=7)}}).result(), normals(1, 3, 9, 11, seed=7))
    number("forget_flush").value = 0
    x = normals(1, 3, 9, 11, seed=11)
    number("forget_invalidate").value = 1
    assert not are_right(session.submit({{"x": x}}).result(), x)
    assert not are_right(session.submit({{"x": x}}, out="device").result(), x)
    number("forget_invalidate").value = 0
    assert all(ways(session, 12).values())
"""


@pytest.mark.alone
def test_memory_that_is_not_coherent_is_flushed_and_invalidated(tmp_path):
    (tmp_path / "incoherent.c").write_text(INCOHERENT)
    library = tmp_path / "incoherent.so"
    subprocess.run(
        ["gcc", "-w", "-shared", "-fPIC", "-o", library, tmp_path / "incoherent.c", "-ldl"], check=True, timeout=60
    )
    preload = " ".join([os.environ.get("LD_PRELOAD", ""), str(library)])
    program = PROGRAM.format(folder=str(Path(__file__).parent))
    env = {**os.environ, "LD_PRELOAD": preload, "VK_INSTANCE_LAYERS": ""}  # unknown to the layer, which stays out
    subprocess.run([sys.executable, "-c", program], check=True, env=env, timeout=120)


@pytest.mark.parametrize("staging", [True, False])
def test_runs_one_after_the_other_see_their_own_inputs(device, staging):
    with Session(conv_graph(), device, options=Options(staging=staging), poison=True) as session:
        for seed in range(5):
            x = normals(1, 3, 9, 11, seed=seed)
            first = session.run({"x": x})
            assert_right(first, x)
            again = session.run({"x": x})
            assert all(first[name].tobytes() == again[name].tobytes() for name in first)


def test_staging_changes_no_byte(device):
    x = {"x": normals(2, 5, 13, 7), "z": np.arange(3, dtype=np.float16)}
    nodes = (
        vkconv.Node("r", "relu", ("x",), ("a",)),
        vkconv.Node("s", "softmax", ("a",), ("b",), {"axis": 1}),
        vkconv.Node("h", "relu", ("z",), ("c",)),  # 6 bytes: the last word is not whole
    )
    specs = {"x": vkconv.TensorSpec((2, 5, 13, 7)), "z": vkconv.TensorSpec((3,), DType.F16)}
    graph = vkconv.Graph(specs, ("a", "b", "c", "x"), nodes)
    got = []
    for staging in (None, True, False):
        with Session(graph, device, options=Options(staging=staging), poison=True) as session:
            got.append(session.run(x))
    for name in ("a", "b", "c", "x"):
        assert got[0][name].tobytes() == got[1][name].tobytes() == got[2][name].tobytes()
    np.testing.assert_array_equal(got[0]["x"], x["x"])


def test_buffers_of_both_kinds(device):
    live = open_device(device)
    for kind in ("input", "output"):
        buffer = live.handle.buffer(1000, kind)
        np.frombuffer(buffer.view, np.uint8)[:] = 7
        buffer.flush()
        buffer.invalidate()
        assert (np.frombuffer(buffer.view, np.uint8) == 7).all() and isinstance(buffer.coherent, bool)
    with pytest.raises(Exception, match="kind 'device' is not visible to the host"):
        live.handle.buffer(1000, "device").flush()


@pytest.mark.parametrize("widened", [False, True])
@pytest.mark.parametrize("dtype", [None, "f16"])
def test_outputs_in_memory_of_the_host_and_narrowed_inputs_where_kernels_read_them(dtype, widened, monkeypatch):
    """As behind PCIe: no kernel reads such an output, also not where it stays on the device."""
    here = transfers.transfers

    def few(*args):
        return dataclasses.replace(here(*args), far_outputs=True, narrowed=True, imported=None, widened=widened)

    monkeypatch.setattr(steps, "transfers", few)
    nodes = (Node("r", "relu", ("x",), ("a",)), Node("t", "matmul", ("a", "a"), ("b",)))
    graph = Graph({"x": TensorSpec((7, 7))}, ("a", "b"), nodes, {}, "net")
    with Session(graph, options=Options(dtype=dtype), poison=True) as session:
        kinds = {name: kind for name, (_, kind) in session.plan.buffers.items()}
        # A cast makes a, which nothing else reads, or else the matmul does.
        assert kinds["output:a"] == ("output" if dtype else "download") and len(session.plan.narrowed) == bool(dtype)
        assert kinds["widened:b" if dtype and widened else "output:b"] == "output"
        for seed in range(3):
            x = np.random.default_rng(seed).integers(-4, 5, (7, 7)).astype(np.float32)
            a = np.maximum(x, 0)
            runs = session.run({"x": x}), session.submit({"x": x}).result(60), session.run({"x": vkconv.array(x)})
            for found in (*runs, session.run({"x": x}, out="device")):
                assert (np.asarray(found["a"]) == a).all() and (np.asarray(found["b"]) == a @ a).all()
