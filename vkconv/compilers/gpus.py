"""Which GPUs' compilers vkconv can run: the data file, typed and checked."""

import functools
from pathlib import Path

import msgspec

from vkconv.core import UsageError, did_you_mean

_DATA = Path(__file__).parent


class PackageSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Debian packages that are unpacked into one folder. ``suites`` are where they come from, the one that outranks the
    others last; ``without`` are names, or patterns, of dependencies that are left out. ``emulator`` are packages for
    machines of other architectures, of whose dependencies all are left out."""

    architecture: str
    suites: tuple[str, ...]
    packages: tuple[str, ...]
    without: tuple[str, ...] = ()
    emulator: tuple[str, ...] = ()


class Driver(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Vulkan driver and the shim that stands for its kernel side. ``variable`` tells the shim which GPU to be;
    ``environment`` is what else the driver wants. ``columns`` says which statistics each column is the sum of, and
    ``occupancy`` what is counted in the column of that name. ``invented`` are facts of the device, by their paths in a
    device file, that the shim makes up or the machine here gives."""

    title: str
    vendor: str
    set: str
    icd: str
    shim: str
    occupancy: str
    columns: dict[str, tuple[str, ...]]
    invented: tuple[str, ...]
    variable: str = ""
    environment: dict[str, str] = {}
    traps: tuple[str, ...] = ()


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU: ``value`` of its driver's variable, and the shipped device file that calls are planned with; without one
    they are planned with what the driver says behind the shim. ``aliases`` are other names for it."""

    name: str
    title: str
    driver: str
    aliases: tuple[str, ...] = ()
    value: str = ""
    device: str = ""
    traps: tuple[str, ...] = ()


class Tried(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A package as it was tried: its version, and the digest of its file."""

    version: str
    sha256: str


class Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole of gpus.toml."""

    sets: dict[str, PackageSet]
    drivers: dict[str, Driver]
    gpus: tuple[Gpu, ...]


@functools.cache
def data() -> Data:
    """The shipped GPUs, their drivers and their sets of packages."""
    return msgspec.toml.decode((_DATA / "gpus.toml").read_bytes(), type=Data)


@functools.cache
def tried(set_name: str) -> dict[str, Tried]:
    """The packages of a set as they were tried, by name."""
    every = msgspec.toml.decode((_DATA / "packages.toml").read_bytes(), type=dict[str, dict[str, Tried]])
    return every.get(set_name, {})


def gpu_names() -> list[str]:
    """Names of the GPUs, in the order of the file."""
    return [gpu.name for gpu in data().gpus]


def find_gpu(name: str) -> Gpu:
    """The GPU of a name or an alias. UsageError where there is none."""
    for gpu in data().gpus:
        if name in (gpu.name, *gpu.aliases):
            return gpu
    known = gpu_names()
    near = did_you_mean(name, [*known, *(alias for gpu in data().gpus for alias in gpu.aliases)])
    raise UsageError(f"there is no compiler for a GPU {name!r}{near}; {', '.join(known)}")


def find_gpus(text: str) -> list[Gpu]:
    """The GPUs of a list such as ``adreno-740,navi31``, each once; UsageError for none, or one that is not there."""
    names = dict.fromkeys(filter(None, (word.strip() for word in text.split(","))))
    if not names:
        raise UsageError(f"--with {text!r} names no GPU; {', '.join(gpu_names())}")
    return list(dict.fromkeys(find_gpu(name) for name in names))


def driver_of(gpu: Gpu) -> Driver:
    """The driver of a GPU."""
    return data().drivers[gpu.driver]


def set_of(gpu: Gpu) -> str:
    """The name of the set of packages that a GPU's driver is in."""
    return driver_of(gpu).set
