"""What a launch costs on a target: microseconds of the compute unit that has the most to do.

A kernel says what one compute unit takes for so many of its workgroups, each of so many k-tiles (`UnitCost`); the
numbers of the device come from its target, the kernel's own from a policy (`vkconv.policy`). What a policy has in
microseconds of a GPU that was timed, `Scale` makes those of another target.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal, Protocol, Self

from vkconv.core import UsageError, align, ceil_div, did_you_mean
from vkconv.device import Device, Target, load_device, shipped_devices, target_of
from vkconv.policy import Policy


class UnitCost(Protocol):
    """What a compute unit takes for workgroups of one kernel."""

    def us(self, workgroups: int, k_tiles: float, target: Target) -> float:
        """Microseconds for so many workgroups of so many k-tiles each."""


def launch_us(
    cost: UnitCost, workgroups: int, k_tiles: float, target: Target, nbytes: float = 0.0, launches: int = 0
) -> float:
    """Microseconds of a launch: those of the compute unit with the most workgroups, and no less than moving ``nbytes``
    takes; ``launches``: how many it is of which the cost does not have what the launch itself takes."""
    busiest = cost.us(ceil_div(workgroups, target.compute_units), k_tiles, target)
    us = max(busiest, nbytes / 1e3 / target.value("bandwidth_gbs")) if nbytes else busiest
    return us + launches * target.value("launch_us") if launches else us


def moving_us(nbytes: float, target: Target, launches: int = 1) -> float:
    """Microseconds of launches, one after the other, that only move so many bytes from and to memory."""
    return launches * target.value("launch_us") + nbytes / 1e3 / target.value("bandwidth_gbs")


def lanes_us(multiply_adds: float, target: Target, share: float = 1.0) -> float:
    """Microseconds in which all lanes make so many multiply-adds in f32, at this share of their rate."""
    return multiply_adds / (target.compute_units * target.value("fma_per_unit") * target.value("clock_mhz") * share)


@dataclasses.dataclass(frozen=True, slots=True)
class Waves:
    """A kernel of which a compute unit holds ``resident`` workgroups at a time, wave after wave.

    ``cycles`` of a workgroup that has the compute unit for itself, and of ``idle`` more that no number of residents
    fills; ``wait`` is the least a k-tile takes, whatever the number.
    """

    cycles: float
    resident: int
    idle: float
    wait: float

    def us(self, workgroups: int, k_tiles: float, target: Target) -> float:
        full, rest = divmod(workgroups, self.resident)
        compute = self.cycles * (full * (self.resident + self.idle) + (rest + self.idle if rest else 0.0))
        return max(compute, (full + (rest > 0)) * k_tiles * self.wait) / target.value("clock_mhz")


_REGISTER_SHARE = Policy("kernels.register_share", float)

Rate = Literal["fma_per_unit", "matrix_fma_per_unit"]
"""The number of a target by which the products of a kernel go."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Speed:
    """What times of a device come from: us of a launch, of a cycle, of a multiply-add of a compute unit, of a byte from
    memory and, beside those of others, of one from the last-level cache."""

    launch: float
    cycle: float
    product: float
    byte: float
    cached: float

    @classmethod
    def of(cls, value: Callable[[str], float], rate: Rate) -> Self:
        """By the numbers of a target. Without units for matrices lanes multiply them. No target has the bandwidth of
        its cache: each compute unit takes as much of it in a cycle."""
        cycle = 1 / value("clock_mhz")
        in_a_cycle = value(rate) or value("fma_per_unit") * value("f16_rate")
        byte, cached = 1e-3 / value("bandwidth_gbs"), cycle / value("compute_units")
        return cls(value("launch_us"), cycle, cycle / in_a_cycle, byte, cached)


@functools.cache
def _speed_of_timed(name: str, rate: Rate) -> _Speed:
    if name not in shipped_devices():
        said = did_you_mean(name, shipped_devices())
        raise UsageError(f"times of a policy are of the device {name!r}, of which vkconv has no file{said}")
    numbers = target_of(load_device(name)).numbers  # not by `value`: no rule reads them of its own device
    return _Speed.of(lambda number: numbers[number].value, rate)


@dataclasses.dataclass(frozen=True)
class Scale:
    """What microseconds of the GPU that was timed are on a target: launches cost what they cost there, products go by
    the rate and clock of its compute units, bytes by its bandwidth, and what is left by the clock. On the timed GPU
    they stay what they are, to the bit."""

    timed: _Speed
    here: _Speed

    @staticmethod
    @functools.lru_cache(maxsize=256)  # each candidate of the chooser asks
    def of(timed_on: str, target: Target, rate: Rate = "fma_per_unit") -> "Scale":
        """From the device of that shipped file to a target. UsageError where there is no such file."""
        return Scale(_speed_of_timed(timed_on, rate), _Speed.of(target.value, rate))

    @functools.cached_property
    def _clock(self) -> float:
        return self.here.cycle / self.timed.cycle

    @functools.cached_property
    def _launch(self) -> float:
        return self.here.launch - self.timed.launch * self._clock

    @functools.cached_property
    def _product(self) -> float:
        return self.here.product - self.timed.product * self._clock

    def launched(self, us: float, launches: int = 1, products: float = 0.0) -> float:
        """Of so many launches, in which the compute unit that has the most to do makes so many multiply-adds."""
        return us * self._clock + launches * self._launch + products * self._product

    def moved(self, us: float) -> float:
        """Of what memory moves."""
        return us * (self.here.byte / self.timed.byte)

    def cached(self, us: float) -> float:
        """Of what the last-level cache moves."""
        return us * (self.here.cached / self.timed.cached)

    def bound(self, nbytes: float) -> float:
        """The bytes that may bound a launch: all where memory is slower than the timed one, which times have in
        them."""
        return nbytes if self.here.byte > self.timed.byte else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """A kernel that was timed on a GPU: microseconds of the first workgroup, with the launch, and each k-tile of it; of
    each further one, which another may hide, and each k-tile of that; so many further ones at a time. ``scale`` and
    the multiply-adds of a k-tile make them those of a target."""

    first: float
    first_k: float
    further: float
    further_k: float
    together: int
    scale: Scale
    products: float

    def us(self, workgroups: int, k_tiles: float, target: Target) -> float:
        further = align(workgroups, self.together) - 1 if workgroups > 1 else 0
        timed = self.first + k_tiles * self.first_k + further * (self.further + k_tiles * self.further_k)
        return self.scale.launched(timed, products=workgroups * k_tiles * self.products)


@dataclasses.dataclass(frozen=True, slots=True)
class Turns:
    """A kernel whose workgroups take ``work`` each, ``resident`` at a time; fewer take no less time than ``least``."""

    work: float
    resident: int = 1
    least: float = 1.0

    def us(self, workgroups: int, k_tiles: float, target: Target) -> float:
        full, rest = divmod(workgroups, self.resident)
        return self.work * (full * max(self.resident, self.least) + (max(rest, self.least) if rest else 0.0))


@dataclasses.dataclass(frozen=True, slots=True)
class Issued:
    """A kernel by its instructions: ``cycles`` in which a compute unit issues those of a workgroup, of all no fewer
    than ``least``, and ``wait`` that nothing hides, once for each ``resident`` workgroups (0: once for all)."""

    cycles: float
    least: float = 0.0
    wait: float = 0.0
    resident: int = 0

    def us(self, workgroups: int, k_tiles: float, target: Target) -> float:
        turns = ceil_div(workgroups, self.resident) if self.resident else 1
        return (max(workgroups * self.cycles, self.least) + turns * self.wait) / target.value("clock_mhz")


def compute_units(device: Device) -> int:
    """Compute units of a device, as its target has them."""
    return target_of(device).compute_units


def launch_cycles(device: Device) -> float:
    """Cycles of a compute unit in the time of one more launch."""
    target = target_of(device)
    return target.value("launch_us") * target.value("clock_mhz")


def lanes_of(device: Device) -> int:
    """Invocations of a subgroup: as many words shared memory is taken to give out in a cycle, each from a bank."""
    return max(1, device.subgroup_size)


def issue_rate(device: Device) -> float:
    """Instructions of subgroups that a compute unit issues in a cycle: as many as its multiply-adds come to."""
    return target_of(device).value("fma_per_unit") / lanes_of(device)


def scaled(per_unit: float, device: Device) -> int:
    """A number for each compute unit, for all of them."""
    return max(1, round(per_unit * compute_units(device)))


def spills(registers: int, device: Device) -> bool:
    """Whether invocations that are estimated to need so many 32-bit registers may have too few on the device: compilers
    spill some before the last."""
    return registers > _REGISTER_SHARE.of(device) * target_of(device).value("registers_per_lane")


def resident_workgroups(device: Device, local: int, shared_bytes: int, registers: int = 0) -> int:
    """Workgroups that a compute unit holds at a time, by its invocations, shared memory and registers (of an
    invocation; 0: not known)."""
    target = target_of(device)
    limits = [target.value("workgroups_per_unit"), target.value("lanes_per_unit") // local]
    limits += [target.value("shared_bytes_per_unit") // shared_bytes] if shared_bytes else []
    limits += [target.value("registers_per_unit") // (registers * local)] if registers else []
    return max(1, int(min(limits)))


def occupancy_estimate(device: Device, local: int, shared_bytes: int, registers: int = 0) -> int:
    """An estimate of the workgroups that the device holds at a time. Vulkan does not tell occupancy."""
    return compute_units(device) * resident_workgroups(device, local, shared_bytes, registers)
