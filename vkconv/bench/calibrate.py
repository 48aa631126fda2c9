"""What a device can do at all, measured: copy bandwidth and f32 multiply-adds. Rows are held against these floors."""

import dataclasses
from collections.abc import Mapping

from vkconv.backend.executable import Executable
from vkconv.backend.runtime import LiveDevice
from vkconv.bench.rows import Floors
from vkconv.core import align
from vkconv.device import Device
from vkconv.ops.kernels import rooflines as kernels
from vkconv.plan.commands import Launch, Region
from vkconv.plan.limits import check_dispatch
from vkconv.plan.model import Memory, Plan
from vkconv.plan.transfers import transfers
from vkconv.policy import Policy
from vkconv.program import Dispatch


@dataclasses.dataclass(frozen=True, slots=True)
class _Sizes:
    """MiB of each copy buffer, and invocations that fill the device."""

    copy_mib: int
    invocations: int


_SIZES = Policy("bench.rooflines", _Sizes)
_FMA_US = 2000.0
_ITERATIONS = (1 << 6, 1 << 13)  # from, to: far below every watchdog and the loop limits of drivers
_REPEATS = 3

_known: dict[str, Floors] = {}


def floors(live: LiveDevice) -> Floors:
    """The floors of an open device; measured once in a process, in well under a second on most devices.

    Raises DeviceError or LimitError where the device cannot run even that.
    """
    key = live.device.key
    if key not in _known:
        _known[key] = Floors(copy_gbps=_copy_gbps(live), fma_gflops=_fma_gflops(live))
    return _known[key]


def copy_bytes(device: Device) -> int:
    """Size of each of the two buffers: what the kind of device asks for, within its limits and a heap's eighth."""
    wanted = _SIZES.of(device).copy_mib << 20
    most = min(wanted, device.limit("maxStorageBufferRange"), device.heap_bytes // 8)
    return most // kernels.COPY_STEP_BYTES * kernels.COPY_STEP_BYTES


def _copy_gbps(live: LiveDevice) -> float:
    nbytes = copy_bytes(live.device)
    dispatches = [kernels.copy(nbytes, items, live.device) for items in kernels.COPY_ITEMS]
    least_us = min(_least_us(live, {"x": nbytes, "y": nbytes}, dispatch) for dispatch in dispatches)
    return 2 * nbytes / least_us / 1e3


def _fma_gflops(live: LiveDevice) -> float:
    count = _SIZES.of(live.device).invocations
    iterations, most = _ITERATIONS
    while True:
        us = _least_us(live, {"y": 4 * count}, kernels.multiply_add(count, iterations, live.device))
        if us >= _FMA_US or iterations >= most:
            return kernels.fma_flops(count, iterations) / us / 1e3
        iterations *= 2


def _least_us(live: LiveDevice, buffers: Mapping[str, int], dispatch: Dispatch) -> float:
    """GPU microseconds of the fastest of a few repeats of a dispatch over fresh buffers."""
    executable = Executable(plan_dispatch(live.device, buffers, dispatch), live, {})
    try:
        repeats = executable.repeat(_REPEATS)
        repeats.run()
        return max(min(repeats.run()[0]), live.device.timestamp_period_ns / 1e3)
    finally:
        executable.close()


def plan_dispatch(device: Device, buffers: Mapping[str, int], dispatch: Dispatch) -> Plan:
    """A plan of one dispatch and nothing else; ``buffers`` are those that it binds, in bytes."""
    check_dispatch("calibration", dispatch, device)
    alignment = max(4, device.limit("minStorageBufferOffsetAlignment"))
    sizes = {name: align(nbytes, alignment) for name, nbytes in buffers.items()}
    binds = tuple((Region(bind.buffer, 0, buffers[bind.buffer]), bind.access) for bind in dispatch.binds)
    launch = Launch("calibration", dispatch.shader, binds, dispatch.groups, dispatch.spec_words, dispatch.push_bytes)
    return Plan(
        graph="calibration",
        device=device,
        inputs={},
        outputs={},
        known={},
        buffers={name: (nbytes, "device") for name, nbytes in sizes.items()},
        stage={},
        load=(),
        run=(launch,),
        nodes=(),
        values={},
        memory=Memory(sum(sizes.values()), sum(sizes.values()), 0, 0, 0, 0),
        transfers=transfers(device, None, 0, 0),
    )
