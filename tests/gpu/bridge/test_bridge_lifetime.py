"""The bridge leaks, hangs and crashes nowhere: what is closed, dropped, abandoned or left, and waiting for work."""

import gc
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bridge_kit import Affine, integers, long_work
from lifetime import ENDS_WITHIN_S, WORK_S, run_told

from vkconv.backend import _bridge

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


# --- lifetime -------------------------------------------------------------------------------------


def test_use_after_close(device: _bridge.Device, affine_spirv: bytes) -> None:
    affine = Affine(device, affine_spirv, 1009)
    x = integers(1009)
    affine(x)
    seen = np.frombuffer(affine.download.view, np.float32)
    recording, pipeline = device.recording(), device.pipeline(affine_spirv, 2, 8, [64])
    sequence = affine.recording.sequence
    device.close()
    device.close()
    assert device.closed
    np.testing.assert_array_equal(seen, affine.expected(x))  # the view keeps its memory
    uses: list[Callable[[], object]] = [
        lambda: device.facts,
        lambda: device.enabled,
        lambda: device.manager,
        lambda: device.pipeline_cache_loaded,
        lambda: device.memory(),
        lambda: device.buffer(4, "device"),
        lambda: device.recording(),
        lambda: device.pipeline(affine_spirv, 2, 8),
        lambda: device.pipeline_cache(),
        lambda: device.wait_idle(),
        lambda: affine.recording.run(),
        lambda: affine.recording.submit(),
        lambda: affine.recording.wait(),
        lambda: affine.recording.timestamps_ns(),
        lambda: affine.recording.sequence,
        lambda: affine.upload.view,
        lambda: recording.dispatch(pipeline, [], b"", (1, 1, 1)),
        lambda: recording.end(),
    ]
    for use in uses:
        with pytest.raises(_bridge.VulkanError, match="closed"):
            use()
    assert not sequence.is_init()


def test_children_outlive_a_dropped_device(device: _bridge.Device, affine_spirv: bytes) -> None:
    own = _bridge.Device(0)
    affine = Affine(own, affine_spirv, 77)
    del own
    gc.collect()
    x = integers(77)
    np.testing.assert_array_equal(affine(x), affine.expected(x))


def test_cycles_do_not_leak(device: _bridge.Device, affine_spirv: bytes) -> None:
    def cycle(close: bool) -> None:
        own = _bridge.Device(0)
        affine = Affine(own, affine_spirv, 4099, steps=8, timestamps=9)
        x = integers(4099)
        np.testing.assert_array_equal(affine(x)[:3], affine.expected(x)[:3])
        with pytest.raises(ValueError, match="at least 1"):
            own.buffer(0, "device")
        assert own.manager.sequence().is_init()
        if close:
            own.close()

    def resident_bytes() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for i in range(40):
        cycle(i % 2 == 0)
    before = resident_bytes()
    for i in range(200):
        cycle(i % 2 == 0)
    assert resident_bytes() - before < 8 << 20


def test_pipeline_cache_round_trip_and_damage(device: _bridge.Device, affine_spirv: bytes) -> None:
    assert not device.pipeline_cache_loaded
    device.pipeline(affine_spirv, 2, 8, [64])
    blob = device.pipeline_cache()
    with _bridge.Device(0, pipeline_cache=blob) as again:
        assert again.pipeline_cache_loaded
        x = integers(99)
        affine = Affine(again, affine_spirv, 99)
        np.testing.assert_array_equal(affine(x), affine.expected(x))
    damaged = [blob[:-1], blob + b"\0", blob[:20], b"", os.urandom(len(blob))]
    for i in range(0, len(blob), max(1, len(blob) // 16)):
        damaged.append(blob[:i] + bytes([blob[i] ^ 0x10]) + blob[i + 1 :])
    for bad in damaged:
        with _bridge.Device(0, pipeline_cache=bad) as fresh:
            assert not fresh.pipeline_cache_loaded
            assert fresh.pipeline(affine_spirv, 2, 8, [64])


def test_merged_pipeline_caches_hold_the_pipelines_of_both(
    device: _bridge.Device, affine_spirv: bytes, spin_spirv: bytes
) -> None:
    device.pipeline(affine_spirv, 2, 8, [64])
    own = device.pipeline_cache()
    with _bridge.Device(0) as other:
        other.pipeline(spin_spirv, 1, 8)
        theirs = other.pipeline_cache()
    merged = device.merge_pipeline_cache(theirs)
    assert len(merged) >= max(len(own), len(theirs))
    if len(own) > 1000:  # lavapipe keeps nothing but a header
        assert len(merged) > max(len(own), len(theirs))
    for useless in (b"", theirs[:-1], os.urandom(len(theirs))):
        assert len(device.merge_pipeline_cache(useless)) == len(own)
    assert device.pipeline_cache() == own
    with _bridge.Device(0, pipeline_cache=merged) as again:
        assert again.pipeline_cache_loaded
        x = integers(99)
        affine = Affine(again, affine_spirv, 99)
        np.testing.assert_array_equal(affine(x), affine.expected(x))
    device.close()
    with pytest.raises(_bridge.VulkanError, match="closed"):
        device.merge_pipeline_cache(theirs)


# --- waiting --------------------------------------------------------------------------------------


def test_submit_and_wait(device: _bridge.Device, affine_spirv: bytes) -> None:
    first, second = Affine(device, affine_spirv, 509, 3), Affine(device, affine_spirv, 251, 4)
    x, y = integers(509), integers(251)
    np.frombuffer(first.upload.view, np.float32)[:] = x
    np.frombuffer(second.upload.view, np.float32)[:] = y
    with pytest.raises(_bridge.VulkanError, match="nothing was submitted"):
        first.recording.wait()
    first.recording.submit()
    second.recording.submit()
    assert second.recording.wait()
    assert first.recording.wait()
    assert first.recording.wait(timeout_ns=0)
    np.testing.assert_array_equal(np.frombuffer(first.download.view, np.float32), first.expected(x))
    np.testing.assert_array_equal(np.frombuffer(second.download.view, np.float32), second.expected(y))


def test_time_out_leaves_the_recording_usable(device: _bridge.Device, spin_spirv: bytes) -> None:
    work = long_work(device, spin_spirv, 1.0)
    start = time.perf_counter()
    with pytest.raises(_bridge.TimeoutError_, match=r"within 0\.05 s") as caught:
        work.run(timeout_ns=50_000_000)
    assert time.perf_counter() - start < 0.5
    assert caught.value.result == "VK_TIMEOUT"
    for use in (work.run, work.submit):
        with pytest.raises(_bridge.VulkanError, match="still works"):
            use()
    with pytest.raises(_bridge.VulkanError, match="no completed run"):
        work.timestamps_ns()
    assert not work.wait(timeout_ns=1000)
    assert work.wait()
    work.run()


def test_close_waits_for_the_device(device: _bridge.Device, spin_spirv: bytes) -> None:
    work = long_work(device, spin_spirv, 0.5)
    work.submit()
    start = time.perf_counter()
    device.close()
    assert time.perf_counter() - start > 0.1
    with pytest.raises(_bridge.VulkanError, match="closed"):
        work.wait()


def test_abandon_lets_go_and_the_device_works_on(
    device: _bridge.Device, spin_spirv: bytes, affine_spirv: bytes
) -> None:
    affine, x = Affine(device, affine_spirv, 251, steps=2), integers(251)
    work = long_work(device, spin_spirv, 1.0)
    with pytest.raises(_bridge.TimeoutError_):
        work.run(timeout_ns=20_000_000)
    start = time.perf_counter()
    work.abandon()
    assert time.perf_counter() - start < 0.2
    assert device.abandoned == 1
    for use in (work.run, work.submit, work.wait, work.end, work.timestamps_ns):
        with pytest.raises(_bridge.VulkanError, match="abandoned"):
            use()
    work.abandon()
    del work
    np.testing.assert_array_equal(affine(x), affine.expected(x))  # after the spinning, on the same queue
    assert time.perf_counter() - start > 0.4
    assert device.abandoned == 0
    affine.recording.abandon()
    assert device.abandoned == 0, "nothing of it was in flight"
    with pytest.raises(_bridge.VulkanError, match="abandoned"):
        affine.recording.run()


def test_abandoned_memory_comes_back(device: _bridge.Device, spin_spirv: bytes) -> None:
    nbytes = 256 << 20

    def grown_bytes() -> int:
        """Resident memory since the start: addresses do not tell, another mapping may take those of freed memory."""
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") - resident_bytes

    work = long_work(device, spin_spirv, 0.5)
    resident_bytes = 0
    resident_bytes = grown_bytes()
    buffer = device.buffer(nbytes, "download")
    np.frombuffer(buffer.view, np.uint8).fill(1)
    held = device.recording()
    held.fill(buffer, 0, nbytes, 7)
    held.end()
    work.submit()
    held.submit()
    held.abandon()
    del held, buffer
    assert device.abandoned == 1
    assert grown_bytes() > nbytes // 2, "freed under the device's hands"
    work.wait()
    device.wait_idle()
    assert device.abandoned == 0
    assert grown_bytes() < nbytes // 2


def test_dropping_a_recording_in_flight_does_not_wait(device: _bridge.Device, spin_spirv: bytes) -> None:
    work = long_work(device, spin_spirv, 2.0)
    work.submit()
    start = time.perf_counter()
    del work
    gc.collect()
    assert time.perf_counter() - start < 1.0
    assert device.abandoned == 1
    device.wait_idle()
    assert device.abandoned == 0


def test_close_gives_abandoned_work_two_seconds(device: _bridge.Device, spin_spirv: bytes, affine_spirv: bytes) -> None:
    with _bridge.Device(0) as own:
        work = long_work(own, spin_spirv, 5.0)
        affine = Affine(own, affine_spirv, 99)
        work.submit()
        work.abandon()
        affine.recording.submit()
        start = time.perf_counter()
    assert 1.5 < time.perf_counter() - start < 3.5
    with pytest.raises(_bridge.VulkanError, match="closed"):
        affine.recording.wait()
    with _bridge.Device(0) as again:  # what was let go still runs
        x = integers(99)
        later = Affine(again, affine_spirv, 99)
        np.testing.assert_array_equal(later(x), later.expected(x))


# ``patient`` is as a driver that waits at the end of a process, for its device or for threads: it never ends. ``late``
# comes to it once it works.
LEAVE_PROGRAM = """
import ctypes, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from bridge_kit import long_work
how, seconds = sys.argv[3], float(sys.argv[4])
def patience():
    libc = ctypes.CDLL(None)
    libc.on_exit(libc.pause, None)
if how == "patient":
    patience()
from vkconv.backend import _bridge
device = _bridge.Device(0)
work = long_work(device, Path(sys.argv[2]).read_bytes(), seconds)
work.submit()
if how == "late":
    patience()
if how == "abandon":
    work.abandon()
print(time.time())
"""


FORK_PROGRAM = """
import gc, os, signal, sys, time
sys.path[:0] = [sys.argv[1], os.path.dirname(sys.argv[1])]
from pathlib import Path
from bridge_kit import Affine, integers, long_work
from lifetime import where_it_is
from vkconv.backend import _bridge
began, who = time.perf_counter(), "parent"
def tell(step):
    print(f"{time.perf_counter() - began:.2f} s, {who}: {step}", file=sys.stderr, flush=True)
device = _bridge.Device(0)
other = _bridge.Device(0)
manager = other.manager
work = long_work(device, Path(sys.argv[2]).read_bytes(), 2.0)
affine = Affine(device, Path(sys.argv[3]).read_bytes(), 99)
sequence = affine.recording.sequence
work.submit()
tell("forks, with work in flight")
forked = time.perf_counter()
child = os.fork()
if child == 0:
    who = "child"
    signal.alarm(15)
    tell("closes a device")
    device.close()
    tell("drops all that it inherited")
    del work, affine, device, sequence, other, manager
    gc.collect()
    tell("leaves by exit")
    sys.exit(3)
while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
    time.sleep(0.01)
    if time.perf_counter() - forked > 10:
        tell("the child does not end:\\n" + where_it_is(child))
        os._exit(1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
tell(f"the child ended with {code}")
assert code == 3
assert not work.wait(timeout_ns=0), "the child did not wait for the parent's work"
assert work.wait(timeout_ns=15 * 10**9), "the device does not come to an end"
tell("the device works on")
x = integers(99)
assert (affine(x) == affine.expected(x)).all()
tell("leaves")
"""


def test_a_forked_child_leaves_what_it_inherited_alone(spin_spirv: bytes, affine_spirv: bytes, tmp_path: Path) -> None:
    arguments = [str(Path(__file__).parent)]
    for name, spirv in (("spin", spin_spirv), ("affine", affine_spirv)):
        (tmp_path / name).write_bytes(spirv)
        arguments.append(str(tmp_path / name))
    run_told(FORK_PROGRAM, arguments, 60)


PATIENT_FORK = """
import ctypes, os, signal, sys
from vkconv.backend import _bridge
libc = ctypes.CDLL(None)
when, used = sys.argv[1:]
if when == "before":
    libc.on_exit(libc.pause, None)
held = _bridge.Device(0) if used == "device" else _bridge.devices()
if when == "after":
    libc.on_exit(libc.pause, None)
child = os.fork()
if child == 0:
    signal.alarm(10)
    sys.exit(3)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 255)
"""
on_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="on_exit is of glibc")


@on_glibc
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("used", ["device", "list"])
def test_a_forked_child_ends_before_a_driver_that_would_not(used: str, when: str) -> None:
    assert subprocess.run([sys.executable, "-c", PATIENT_FORK, when, used], check=False, timeout=30).returncode == 3


@pytest.mark.parametrize(
    "how", ["abandon", "leave", pytest.param("patient", marks=on_glibc), pytest.param("late", marks=on_glibc)]
)
def test_the_process_ends_while_the_device_works(spin_spirv: bytes, tmp_path: Path, how: str) -> None:
    spirv = tmp_path / "spin.spv"
    spirv.write_bytes(spin_spirv)
    program = [sys.executable, "-c", LEAVE_PROGRAM, str(Path(__file__).parent), str(spirv), how, str(WORK_S)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)
    assert time.time() - float(done.stdout) < ENDS_WITHIN_S
