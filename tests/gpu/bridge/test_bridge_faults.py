"""The bridge where a driver fails, Ctrl-C comes, or several threads call."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from bridge_kit import Affine, integers, long_work

from vkconv.backend import _bridge

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


# Stands before the Vulkan loader and, once told, answers for it.
FAULTS = """
#include <dlfcn.h>
typedef int (*Call)(void *, unsigned, const void *, unsigned long, unsigned long);
int submit_result, wait_result, enumerate_result;
static int pass_on(const char *name, void *a, unsigned b, const void *c, unsigned long d, unsigned long e) {
    return ((Call)dlsym(dlopen("libvulkan.so.1", RTLD_NOW), name))(a, b, c, d, e);
}
int vkQueueSubmit(void *queue, unsigned count, const void *infos, unsigned long fence) {
    return submit_result ? submit_result : pass_on("vkQueueSubmit", queue, count, infos, fence, 0);
}
int vkWaitForFences(void *device, unsigned count, const void *fences, unsigned all, unsigned long timeout) {
    return wait_result ? wait_result : pass_on("vkWaitForFences", device, count, fences, all, timeout);
}
int vkGetFenceStatus(void *device, unsigned long fence) {
    int (*real)(void *, unsigned long) = dlsym(dlopen("libvulkan.so.1", RTLD_NOW), "vkGetFenceStatus");
    return wait_result ? wait_result : real(device, fence);
}
int vkEnumeratePhysicalDevices(void *instance, void *count, void *devices) {
    int (*real)(void *, void *, void *) = dlsym(dlopen("libvulkan.so.1", RTLD_NOW), "vkEnumeratePhysicalDevices");
    return enumerate_result ? enumerate_result : real(instance, count, devices);
}
"""

LOST_PROGRAM = """
import ctypes, sys
from vkconv.backend import _bridge
faults = ctypes.CDLL(None)

def fault(name, result):
    ctypes.c_int.in_dll(faults, name).value = result

def failure(use):
    try:
        use()
    except _bridge.VulkanError as error:
        return type(error), error.result
    return None

LOST = (_bridge.DeviceLostError, "VK_ERROR_DEVICE_LOST")
MEMORY = (_bridge.OutOfMemoryError, "VK_ERROR_OUT_OF_DEVICE_MEMORY")
device = _bridge.Device(0)
buffer = device.buffer(4096, "download")

def recording():
    r = device.recording()
    r.fill(buffer, 0, 4096, 7)
    r.end()
    return r

a, b, c, unused = (recording() for _ in range(4))
for start in (a.run, b.submit):
    fault("submit_result", -2)
    assert failure(start) == MEMORY
assert [failure(r.wait) for r in (a, a, b)] == [MEMORY] * 3
fault("submit_result", 0)
a.run()
b.submit()
assert a.wait() and b.wait()
b.submit()
c.submit()
fault("submit_result", -4)
fault("wait_result", -4)
assert failure(a.run) == LOST and failure(b.wait) == LOST
assert [failure(r.wait) for r in (a, b, c, a, b, c)] == [LOST] * 6
assert failure(c.run) == LOST and failure(c.wait) == LOST
assert failure(unused.wait) == (_bridge.VulkanError, "")
a.abandon()
del b, c
assert device.abandoned == 0
device.close()
"""


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process in which Vulkan calls can be made to fail, unknown to the validation layer, which
    therefore stays out."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "faults.c").write_text(FAULTS)
    library = folder / "faults.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, folder / "faults.c", "-ldl"], check=True, timeout=60)
    return {
        **os.environ,
        "LD_PRELOAD": " ".join([os.environ.get("LD_PRELOAD", ""), str(library)]),
        "VK_INSTANCE_LAYERS": "",
    }


def test_a_failed_submission_is_told_again_by_wait(faults: dict[str, str]) -> None:
    subprocess.run([sys.executable, "-c", LOST_PROGRAM], check=True, env=faults, timeout=60)


@pytest.mark.parametrize(
    ("result", "message"), [(0, ""), (-9, ""), (-3, "drivers give no device"), (-1, "HOST_MEMORY")]
)
def test_only_an_absent_driver_is_no_device(faults: dict[str, str], result: int, message: str) -> None:
    program = f"""if True:
        import ctypes
        from vkconv.backend import _bridge
        ctypes.c_int.in_dll(ctypes.CDLL(None), "enumerate_result").value = {result}
        try:
            assert bool(_bridge.devices()) == ({result} == 0)
        except _bridge.VulkanError as error:
            assert {message!r} and {message!r} in str(error), error
        else:
            assert not {message!r}
    """
    subprocess.run([sys.executable, "-c", program], check=True, env=faults, timeout=60)


@pytest.mark.parametrize("call", ["run", "wait_idle"])
def test_interrupt_ends_a_wait(device: _bridge.Device, spin_spirv: bytes, call: str) -> None:
    work = long_work(device, spin_spirv, 3.0)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    if call == "wait_idle":
        work.submit()
    start = time.perf_counter()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        work.run() if call == "run" else device.wait_idle()
    assert 0.2 < time.perf_counter() - start < 1.3
    timer.join()
    assert work.wait()


def test_two_threads(device: _bridge.Device, affine_spirv: bytes) -> None:
    """Different recordings of one device run side by side."""
    failures: list[BaseException] = []

    def replay(seed: int) -> None:
        try:
            affine = Affine(device, affine_spirv, 10_007, steps=6)
            for turn in range(20):
                x = integers(10_007, 1000 * seed + turn)
                np.testing.assert_array_equal(affine(x), affine.expected(x))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=replay, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive()
    assert failures == []


def test_one_recording_in_two_threads_is_refused(device: _bridge.Device, spin_spirv: bytes) -> None:
    work = long_work(device, spin_spirv, 1.0)
    thread = threading.Thread(target=work.run)
    thread.start()
    time.sleep(0.2)
    start = time.perf_counter()
    for use in (work.run, work.submit, work.wait, work.timestamps_ns):
        with pytest.raises(_bridge.VulkanError, match="another thread"):
            use()
    assert time.perf_counter() - start < 0.5, "the waiting thread kept the GIL"
    thread.join()
    work.run()


def test_close_while_another_thread_runs(device: _bridge.Device, spin_spirv: bytes) -> None:
    work = long_work(device, spin_spirv, 0.6)
    thread = threading.Thread(target=work.run)
    thread.start()
    time.sleep(0.2)
    device.close()
    thread.join(timeout=30)
    assert not thread.is_alive()
