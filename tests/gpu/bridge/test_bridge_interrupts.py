"""Threads that poll and copy step aside from the CPUs that take the device's interrupts."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from bridge_kit import Affine, integers

from vkconv.backend import _bridge

pytestmark = pytest.mark.gpu

ADDRESS = "0000:00:06.0"
FEW_CPUS = len(os.sched_getaffinity(0)) < 2
needs_cpus = pytest.mark.skipif(FEW_CPUS, reason="the process has one CPU: there is nowhere to go")


def tree(root: Path, affinities: dict[str, dict[str, str]], messages: bool = True) -> str:
    """Files as Linux has them, of a device with these interrupts: their files, and what is in them."""
    device = root / "sys/bus/pci/devices" / ADDRESS
    (device / "msi_irqs").mkdir(parents=True)
    for number, files in affinities.items():
        if messages:
            (device / "msi_irqs" / number).write_text("msix\n")
        else:
            (device / "irq").write_text(f"{number}\n")
        folder = root / "proc/irq" / number
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(f"{text}\n")
    return str(root)


@pytest.mark.parametrize(
    ("affinities", "messages", "cpus"),
    [
        ({"42": {"effective_affinity_list": "14", "smp_affinity_list": "0-15"}}, True, [14]),
        ({"42": {"effective_affinity_list": "", "smp_affinity_list": "0-2,7"}}, True, [0, 1, 2, 7]),
        ({"42": {"smp_affinity_list": "3"}, "43": {"effective_affinity_list": "1"}, "44": {}}, True, [1, 3]),
        ({"11": {"effective_affinity_list": "5"}}, False, [5]),
        ({"0": {"effective_affinity_list": "5"}}, False, []),
        ({"42": {"effective_affinity_list": "no list"}}, True, []),
        ({"42": {"effective_affinity_list": "6,4-5,9-8,x"}}, True, [4, 5, 6]),
        ({"42": {"effective_affinity_list": "1022-99999999999999999999"}}, True, [1022, 1023]),
        ({"42": {}}, True, []),
        ({}, True, []),
    ],
)
def test_the_cpus_are_those_that_linux_tells_of(
    affinities: dict[str, dict[str, str]], messages: bool, cpus: list[int], tmp_path: Path
) -> None:
    assert _bridge.Interrupts(ADDRESS, tree(tmp_path, affinities, messages)).cpus == cpus


def test_a_device_that_is_nowhere_has_none(tmp_path: Path) -> None:
    assert _bridge.Interrupts(ADDRESS, str(tmp_path)).cpus == []
    assert not _bridge.Interrupts("ffff:ff:1f.7").step_aside()


@pytest.mark.parametrize(
    ("taken", "allowed", "elsewhere"),
    [
        ("14", range(16), [cpu for cpu in range(16) if cpu != 14]),
        ("1", [0, 1], [0]),
        ("0-3", range(8), [4, 5, 6, 7]),
        ("0-4", range(8), []),  # spread
        ("14", [14], []),  # pinned
        ("14", [3], [3]),
    ],
)
def test_threads_go_where_at_least_half_of_their_cpus_are_left(
    taken: str, allowed: list[int], elsewhere: list[int], tmp_path: Path
) -> None:
    interrupts = _bridge.Interrupts(ADDRESS, tree(tmp_path, {"42": {"effective_affinity_list": taken}}))
    assert interrupts.elsewhere(list(allowed)) == elsewhere


@pytest.fixture
def mask() -> Iterator[list[int]]:
    """The CPUs that the thread may use, before and after the test."""
    before = os.sched_getaffinity(0)
    yield sorted(before)
    os.sched_setaffinity(0, before)


def begun_on(cpu: int, mask: list[int]) -> None:
    """Have the thread begin on a CPU, where nothing keeps it."""
    os.sched_setaffinity(0, {cpu})
    os.sched_setaffinity(0, mask)


def until(step: Callable[[], bool]) -> bool:
    """Whether a step comes true in a while: with other processes about Linux may move a thread at any time."""
    end = time.monotonic() + 10
    while not (done := step()) and time.monotonic() < end:
        pass
    return done


@needs_cpus
def test_a_thread_steps_aside_and_keeps_its_affinity(mask: list[int], tmp_path: Path) -> None:
    interrupts = _bridge.Interrupts(ADDRESS, tree(tmp_path, {"42": {"effective_affinity_list": str(mask[0])}}))

    def leaves() -> bool:
        begun_on(mask[0], mask)
        return interrupts.step_aside()

    assert until(leaves) and interrupts.moves == 1
    assert sorted(os.sched_getaffinity(0)) == mask
    os.sched_setaffinity(0, {mask[1]})
    assert not interrupts.step_aside()
    os.sched_setaffinity(0, {mask[0]})
    assert not interrupts.step_aside() and os.sched_getaffinity(0) == {mask[0]}
    assert interrupts.moves == 1


@needs_cpus
def test_who_polls_for_a_run_steps_aside(
    device: _bridge.Device, affine_spirv: bytes, mask: list[int], tmp_path: Path
) -> None:
    interrupts = _bridge.Interrupts(ADDRESS, tree(tmp_path, {"42": {"effective_affinity_list": str(mask[0])}}))
    with _bridge.Device(0, interrupts=interrupts) as told:
        assert told.interrupt_cpus == [mask[0]]
        affine = Affine(told, affine_spirv, 64)
        x = integers(64)

        def leaves() -> bool:
            begun_on(mask[0], mask)
            np.testing.assert_array_equal(affine(x), affine.expected(x))
            return interrupts.moves > 0

        assert until(leaves)
        assert sorted(os.sched_getaffinity(0)) == mask


@needs_cpus
@pytest.mark.parametrize("who", ["caller", "helper"])
def test_who_copies_steps_aside(device: _bridge.Device, who: str, mask: list[int], tmp_path: Path) -> None:
    half = mask[: len(mask) // 2]
    files = tree(tmp_path, {"42": {"effective_affinity_list": ",".join(map(str, half))}})
    interrupts = _bridge.Interrupts(ADDRESS, files)
    with _bridge.Device(0, interrupts=interrupts) as told:
        data = np.arange(1 << 20, dtype=np.float32)
        buffer = told.buffer(data.nbytes, "upload")
        buffer.write(data, threads=2)  # starts a helper, which has this thread's affinity
        before = interrupts.moves

        def leaves() -> bool:
            if who == "caller":
                begun_on(half[0], mask)
            else:
                os.sched_setaffinity(0, {mask[-1]})
            buffer.write(data, threads=1 if who == "caller" else 2)
            return interrupts.moves > before

        assert until(leaves)
        np.testing.assert_array_equal(np.frombuffer(buffer.view, np.float32), data)


def test_runs_read_anew_where_interrupts_go(device: _bridge.Device, affine_spirv: bytes, tmp_path: Path) -> None:
    files = tree(tmp_path, {"42": {"effective_affinity_list": "1020"}})
    interrupts = _bridge.Interrupts(ADDRESS, files)
    with _bridge.Device(0, interrupts=interrupts) as told:
        affine = Affine(told, affine_spirv, 64)
        (tmp_path / "proc/irq/42/effective_affinity_list").write_text("1021\n")
        interrupts.refresh()
        if interrupts.cpus == [1020]:  # else a second had passed
            time.sleep(1.01)
            affine(integers(64))
        assert told.interrupt_cpus == [1021]
    interrupts.read()
    assert interrupts.cpus == [1021]


def test_a_device_on_no_bus_has_no_interrupts(device: _bridge.Device) -> None:
    if "VkPhysicalDevicePCIBusInfoPropertiesEXT" in device.facts["properties"]:
        pytest.skip("the device is on a PCI bus")
    assert device.interrupt_cpus == []
