"""Failures of the device and of memory, injected one after another: each is a VkconvError that says where, the session
closes, and the process works on.

A library before the Vulkan loader answers for it. The validation layer, which knows nothing of that, stays out.
"""

import ctypes
import subprocess
import sys

import numpy as np
import pytest
from faults_kit import environment

import vkconv

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

# Each call of these counts; the one numbered ``fail_at`` (from 1) gives ``fail_with`` and does nothing. Memory that is
# refused stays refused: a device may have several kinds, which are tried in turn.
_CALLS = (
    *("vkAllocateMemory", "vkCreateBuffer", "vkBindBufferMemory", "vkMapMemory", "vkCreateShaderModule"),
    *("vkCreateComputePipelines", "vkCreatePipelineLayout", "vkCreateDescriptorSetLayout", "vkCreateDescriptorPool"),
    *("vkAllocateDescriptorSets", "vkCreateFence", "vkCreateCommandPool", "vkAllocateCommandBuffers"),
    *("vkCreatePipelineCache", "vkCreateDevice", "vkBeginCommandBuffer", "vkEndCommandBuffer", "vkResetFences"),
    *("vkQueueSubmit", "vkGetFenceStatus"),
)
_LIBRARY = """
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
int calls, fail_at, fail_with;
char failed[64];
const char *last = "", *made[1024];  /* what each call was, from 1; polls of a fence in a row are one */
static void *real(const char *name) {
    static void *library;
    if (!library) library = dlopen("libvulkan.so.1", RTLD_NOW);
    return dlsym(library, name);
}
typedef uintptr_t W;
#define CALL(name)                                                          \\
    int name(W a, W b, W c, W d, W e, W f) {                                \\
        static int (*pass_on)(W, W, W, W, W, W);                            \\
        if (!pass_on) pass_on = (int (*)(W, W, W, W, W, W))real(#name);     \\
        int again = fail_at && !strcmp(#name, "vkAllocateMemory") && !strcmp(#name, failed); \\
        int polls = !strcmp(#name, "vkGetFenceStatus") && !strcmp(#name, last); \\
        last = #name;                                                       \\
        if (!polls && ++calls < 1024) made[calls] = last;                   \\
        if ((!polls && calls == fail_at) || again) {                        \\
            strcpy(failed, #name);                                          \\
            /* A device that is lost is not at work any more. */            \\
            if (!strcmp(#name, "vkGetFenceStatus"))                         \\
                while (pass_on(a, b, c, d, e, f) == 1) usleep(100);         \\
            return fail_with;                                               \\
        }                                                                   \\
        return pass_on(a, b, c, d, e, f);                                   \\
    }
"""
_PROGRAM = """
import ctypes, gc, os, signal, sys, threading, time
import numpy as np
import vkconv
from faults_kit import graph, x
from vkconv.backend import runtime

library = ctypes.CDLL(None)
calls, fail_at, fail_with = (ctypes.c_int.in_dll(library, name) for name in ("calls", "fail_at", "fail_with"))
failed = (ctypes.c_char * 64).in_dll(library, "failed")
made = (ctypes.c_char_p * 1024).in_dll(library, "made")
OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY, LOST = -1, -2, -4


way = None

def attempt():
    with vkconv.load(graph, options=vkconv.Options(staging=way)) as session:
        session.run({"x": x})
        return session.run({"x": x})["z"]

def armed(number, result):
    calls.value, fail_at.value, fail_with.value, failed.value = 0, number, result, b""

def disarmed():
    fail_at.value = 0

want = attempt()
PATIENCE_S = 60  # some drivers take a second to open a device, and as long as that to compile
"""


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process in which the calls above can be made to fail."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "faults.c").write_text(_LIBRARY + "".join(f"CALL({name})\n" for name in _CALLS))
    library = folder / "faults.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, folder / "faults.c", "-ldl"], check=True, timeout=60)
    return environment(library, VKCONV_CACHE_DIR=str(folder))


def run(program: str, faults: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM + program], env=faults, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# FRESH opens the device each time, so that opening it is under test too; a device that was lost is opened anew anyway.
# Each of the calls fails where there is time for it, else the first of each kind and some of the others.
_EVERY_CALL = """
way = WAY

def forget():
    if FRESH:
        runtime._open.clear()

forget()
armed(0, 0)
attempt()
kinds = [name.decode() for name in made[1 : calls.value + 1]]
first = [1 + kinds.index(name) for name in dict.fromkeys(kinds)]
others = np.random.default_rng(1).permutation(np.setdiff1d(np.arange(1, len(kinds) + 1), first)).tolist()
started, tried, places = time.perf_counter(), 0, {}
for number in [*first, *others]:
    if tried > max(20, len(first)) and time.perf_counter() - started > PATIENCE_S:
        break
    tried += 1
    forget()
    armed(number, RESULT)
    try:
        attempt()
    except vkconv.VkconvError as error:
        disarmed()
        name = failed.value.decode()
        places[name] = places.get(name, 0) + 1
        assert name, (number, error)
        where = str(error).partition(":")[0]  # the graph, the node that is compiled, or the device
        assert where.startswith(("net on", "c", "s", "opening")), (name, error)
        assert attempt().tobytes() == want.tobytes(), (number, name)
    disarmed()  # a call that may fail (a cache that cannot be read is made anew), or that was not made this time
print(tried, len(kinds), sum(places.values()), places)
"""


@pytest.mark.parametrize(
    ("result", "fresh", "way"),
    [
        ("OUT_OF_DEVICE_MEMORY", True, None),
        ("OUT_OF_HOST_MEMORY", False, None),
        ("LOST", False, None),
        ("OUT_OF_DEVICE_MEMORY", False, "streamed"),
        ("OUT_OF_HOST_MEMORY", False, "imported"),
    ],
)
def test_whichever_call_fails_the_process_works_on(
    faults: dict[str, str], result: str, fresh: bool, way: str | None
) -> None:
    program = _EVERY_CALL.replace("RESULT", result).replace("FRESH", str(fresh)).replace("WAY", repr(way))
    told = run(program, faults)
    assert int(told.split()[0]) > 20 and "vkAllocateMemory" in told and "vkQueueSubmit" in told


_CTRL_C = """
from session_kit import slow_graph
big, ones = slow_graph(4)
session = vkconv.load(big)
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
started = time.perf_counter()
try:
    session.run(ones)
    sys.exit("the run ended before it was interrupted")
except KeyboardInterrupt:
    took = time.perf_counter() - started
assert took < 1.5, took
assert attempt().tobytes() == want.tobytes()  # another session, while the device may still be at work
np.testing.assert_array_equal(session.run(ones)[big.outputs[0]], 1)  # and this one, when it is done
session.close()
"""


def test_an_interrupt_ends_a_run_within_a_second_and_the_next_one_is_right(faults: dict[str, str]) -> None:
    run(_CTRL_C, faults)


_LOST = """
session = vkconv.load(graph)
session.run({"x": x})
armed(1, LOST)
for _ in range(2):  # the one that is told so, and those after
    try:
        session.run({"x": x})
        sys.exit("the device was not lost")
    except vkconv.VkconvError as error:
        assert type(error).__name__ == "DeviceError" and str(error).startswith("net on "), error
    disarmed()
session.close()
session.close()
assert attempt().tobytes() == want.tobytes()
"""


def test_a_lost_device_ends_its_sessions_and_a_new_one_works(faults: dict[str, str]) -> None:
    run(_LOST, faults)


_CYCLES = """
import resource
_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"

class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS.split()]

library.mallinfo2.restype = Mallinfo

def in_use():
    # Bytes that the process has, and those that malloc has given out, which may lie in what was free of the former.
    gc.collect()
    pages, heap = int(open("/proc/self/statm").read().split()[1]), library.mallinfo2()
    return np.array([pages * resource.getpagesize(), heap.uordblks + heap.hblkhd])

for number in range(1, 25):  # failures must not leak either
    armed(number, OUT_OF_DEVICE_MEMORY)
    try:
        attempt()
    except vkconv.VkconvError:
        pass
    disarmed()

def cycles(count, patience_s):
    started = time.perf_counter()
    for cycle in range(count):
        if cycle % 4 == 0:
            armed(1 + cycle % 29, OUT_OF_DEVICE_MEMORY)
        try:
            attempt()
        except vkconv.VkconvError:
            pass
        disarmed()
        if time.perf_counter() - started > patience_s:
            break
    return 1 + cycle

cycles(100, PATIENCE_S / 4)
before = in_use()
count = cycles(1000, PATIENCE_S)
print(count, before[0], *(in_use() - before))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="asks glibc what it has given out")
def test_cycles_with_and_without_failures_leave_no_memory_behind(faults: dict[str, str]) -> None:
    count, before, grown, given_out = map(int, run(_CYCLES, faults).split())
    assert count >= 50
    assert grown < max(0.01 * before * count / 1000, 1 << 20), (count, before, grown)
    assert given_out < 1024 * count, (count, given_out)


def _wide(n: int) -> vkconv.Graph:
    nodes = (vkconv.Node("s", "softmax", ("x",), ("y",)), vkconv.Node("t", "tanh", ("y",), ("z",)))
    return vkconv.Graph({"x": vkconv.TensorSpec(("n", n))}, ("z",), nodes, {}, "wide")


def test_a_plan_over_the_memory_allowed_is_refused_with_both_numbers(device: str) -> None:
    graph = _wide(1024)
    with vkconv.load(graph, device, shapes={"x": (64, 1024)}) as session:
        needed = session.plan.memory.peak_bytes
    with vkconv.load(graph, device, shapes={"x": (64, 1024)}, memory_bytes=needed) as session:
        session.run({"x": np.ones((64, 1024), np.float32)})
        with pytest.raises(vkconv.VkconvError, match=rf"\({needed} bytes\)"):
            session.run({"x": np.ones((65, 1024), np.float32)})
        session.run({"x": np.ones((64, 1024), np.float32)})
    with pytest.raises(vkconv.VkconvError, match=rf"\({needed} bytes\).*\({needed - 1} bytes\)"):
        vkconv.load(graph, device, shapes={"x": (64, 1024)}, memory_bytes=needed - 1)


def test_plans_that_together_are_over_the_memory_allowed_make_room(device: str) -> None:
    graph = _wide(1024)
    with vkconv.load(graph, device, shapes={"x": (64, 1024)}) as session:
        one = session.plan.memory.peak_bytes
    with vkconv.load(graph, device, memory_bytes=2 * one) as session:
        for rows in (64, 63, 62, 61, 64):
            y = session.run({"x": np.ones((rows, 1024), np.float32)})["z"]
            np.testing.assert_allclose(y, np.tanh(1 / 1024), rtol=1e-6)
            assert len(session._executables) <= 2
            assert sum(e.plan.memory.peak_bytes for e in session._executables.values()) <= 2 * one
        assert len(session._executables) == 2
