"""Workgroups of kernels by what their invocations do: sizes, the default first, that a policy has for a device."""

import dataclasses

from vkconv.device import Device
from vkconv.ops.core.base import first, local_sizes
from vkconv.policy import Policy


@dataclasses.dataclass(frozen=True, slots=True)
class Workgroups:
    """Sizes of workgroups, the default first: of kernels whose invocations work ``alone``, in which some share a sum
    (``sharing``), and in which all do (``meeting``). ``items``: elements of an invocation at most that takes several.
    ``spread``: with fewer elements in all, the smallest spread what is done alone over more compute units."""

    alone: tuple[int, ...]
    sharing: tuple[int, ...]
    meeting: tuple[int, ...]
    items: tuple[int, ...]
    spread: int


WORKGROUPS = Policy("kernels.workgroups", Workgroups)


def alone(device: Device, least: int = 0) -> tuple[int, ...]:
    """Sizes of at least so many invocations, each of which works alone."""
    return local_sizes(device, *(size for size in WORKGROUPS.of(device).alone if size >= least))


def alone_by_default(device: Device) -> int:
    """The size of a launch that leaves none open: it packs, fills or gathers on the way to another."""
    return alone(device)[0]


def alone_or_spread(device: Device, few: bool) -> tuple[int, ...]:
    """The same; where there are few, the smallest first."""
    sizes = alone(device)
    return first(min(sizes), sizes) if few else sizes


def sharing(device: Device) -> tuple[int, ...]:
    """Sizes of workgroups in which some invocations share a sum."""
    return local_sizes(device, *WORKGROUPS.of(device).sharing)
