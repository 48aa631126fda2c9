"""`Target`: a device as numbers that cost models and policies read, each with its evidence.

A number is, in this order, what the driver says, what the device's own file says or, where that has no target, the
shipped file of the same device, and what is assumed of devices of its class (``assumed.toml``).
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping

import msgspec

from vkconv.device.facts import Device
from vkconv.device.files import load_device, shipped_devices
from vkconv.device.numbers import NUMBERS, Described, DeviceClass, Number, assumed
from vkconv.device.reads import seen, unwatched, watch_now

_MOBILE = frozenset({"arm", "broadcom", "huawei", "imagination", "qualcomm", "samsung", "verisilicon", "vivante"})


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """A device as numbers. ``name`` is that of its shipped device file, or its own where there is none;
    ``generation_source`` says where the generation is from, ``class_given`` that a device file names the class."""

    name: str
    vendor: str
    generation: str
    device_class: DeviceClass
    numbers: Mapping[str, Number]
    generation_source: str = ""
    class_given: bool = False

    def value(self, name: str) -> float:
        """A number of `NUMBERS`. KeyError for another name."""
        number = self.numbers[name] if watch_now() is None else seen("number", _number, self, name)
        return number.value

    @property
    def compute_units(self) -> int:
        """What runs whole workgroups."""
        return int(self.value("compute_units"))

    @property
    def lane_by_lane(self) -> bool:
        """Whether loads go lane by lane and shared memory is emulated, as CPU drivers do it."""
        return seen("class", _class, self) == "cpu"


@functools.lru_cache(maxsize=256)
def target_of(device: Device) -> Target:
    """The target of a device, live or from a file."""
    with unwatched():  # rules read the numbers, not what they come from
        name, described = _described(device)
        device_class = (described and described.device_class) or _class_of(device)
        numbers = dict(assumed(device_class, device.vendor))
        numbers |= described.numbers if described else {}
        numbers |= dict(_from_driver(device))
    if described is None:
        return Target(name, device.vendor, "", device_class, numbers)
    given = described.device_class is not None
    return Target(name, device.vendor, described.generation, device_class, numbers, described.generation_source, given)


def _target(owner: Target | Device) -> Target:
    return owner if isinstance(owner, Target) else target_of(owner)


def _number(owner: Target | Device, name: str) -> Number:
    return _target(owner).numbers[name]


def _class(owner: Target | Device) -> DeviceClass:
    return _target(owner).device_class


def _class_of(device: Device) -> DeviceClass:
    if device.kind == "cpu":
        return "cpu"
    if device.vendor in _MOBILE:
        return "mobile"
    return "integrated" if device.kind == "integrated" else "discrete"


def _from_driver(device: Device) -> Iterator[tuple[str, Number]]:
    for name, meaning in NUMBERS.items():
        for struct, field, times in meaning.driver:
            if value := device.fact(struct, field):
                yield name, Number(int(value) * times, "driver", f"{struct}.{field}")
                break


def _described(device: Device) -> tuple[str, Described | None]:
    """The name of the shipped file of the device, and what its own file says of it, else that one."""
    name = next((name for sure in _SAME for name, other in _shipped().items() if sure(other, device)), "")
    facts = device.facts if "target" in device.facts or not name else _shipped()[name].facts
    described = msgspec.convert(facts["target"], Described) if "target" in facts else None
    return name or device.name, described


@functools.cache
def _shipped() -> Mapping[str, Device]:
    return {name: load_device(name) for name in shipped_devices()}


def _same_name(a: Device, b: Device) -> bool:
    return (a.vendor, a.name) == (b.vendor, b.name)


def _same_name_and_driver(a: Device, b: Device) -> bool:
    """Two drivers of a GPU may call it alike."""
    drivers = (device.fact("VkPhysicalDeviceDriverProperties", "driverID") for device in (a, b))
    return _same_name(a, b) and len(set(drivers)) == 1


def _same_id(a: Device, b: Device) -> bool:
    return a.device_id == b.device_id and a.device_id[1] != 0 and a.kind == b.kind


def _same_cpu_driver(a: Device, b: Device) -> bool:
    """The name of a CPU driver has the compiler's version and the vectors of the machine in it."""
    return a.kind == b.kind == "cpu" and a.vendor == b.vendor


# The surest first.
_SAME = (_same_name_and_driver, _same_name, _same_id, _same_cpu_driver)
