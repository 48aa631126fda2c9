"""What a launch costs on a target: microseconds of the compute unit that has the most to do.

A kernel says what one compute unit takes for so many of its workgroups, each of so many k-tiles (`UnitCost`); the
numbers of the device come from its target, the kernel's own from a policy (`vkconv.policy`).
"""

import dataclasses
from typing import Protocol

from vkconv.core import align, ceil_div
from vkconv.device import Device, Target, target_of


class UnitCost(Protocol):
    """What a compute unit takes for workgroups of one kernel."""

    def us(self, workgroups: int, k_tiles: float, target: Target) -> float:
        """Microseconds for so many workgroups of so many k-tiles each."""


def launch_us(cost: UnitCost, workgroups: int, k_tiles: float, target: Target, nbytes: float = 0.0) -> float:
    """Microseconds of a launch: those of the compute unit with the most workgroups, and no less than moving ``nbytes``
    takes."""
    busiest = cost.us(ceil_div(workgroups, target.compute_units), k_tiles, target)
    return max(busiest, nbytes / 1e3 / target.value("bandwidth_gbs")) if nbytes else busiest


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


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """A kernel that was timed on a GPU: microseconds of the first workgroup, with the launch, and each k-tile of it; of
    each further one, which another may hide, and each k-tile of that; so many further ones at a time."""

    first: float
    first_k: float
    further: float
    further_k: float
    together: int = 1

    def us(self, workgroups: int, k_tiles: float, target: Target) -> float:
        further = align(workgroups, self.together) - 1 if workgroups > 1 else 0
        return self.first + k_tiles * self.first_k + further * (self.further + k_tiles * self.further_k)


@dataclasses.dataclass(frozen=True, slots=True)
class Turns:
    """A kernel whose workgroups take ``work`` each, ``resident`` at a time; fewer take no less time than ``least``."""

    work: float
    resident: int = 1
    least: float = 1.0

    def us(self, workgroups: int, k_tiles: float, target: Target) -> float:
        full, rest = divmod(workgroups, self.resident)
        return self.work * (full * self.resident + (max(rest, self.least) if rest else 0.0))


def compute_units(device: Device) -> int:
    """Compute units of a device, as its target has them."""
    return target_of(device).compute_units


def launch_cycles(device: Device) -> float:
    """Cycles of a compute unit in the time of one more launch."""
    target = target_of(device)
    return target.value("launch_us") * target.value("clock_mhz")


def scaled(per_unit: float, device: Device) -> int:
    """A number for each compute unit, for all of them."""
    return max(1, round(per_unit * compute_units(device)))


def spills(registers: int, device: Device) -> bool:
    """Whether invocations that are estimated to need so many 32-bit registers may have too few on the device: compilers
    spill some before the last."""
    return registers > 0.9 * target_of(device).value("registers_per_lane")


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
