"""The facts of a driver behind its shim: what it says of a GPU that is not there."""

import contextlib
import functools
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from vkconv.compilers.device_files import without_invented
from vkconv.compilers.gpus import Gpu, driver_of
from vkconv.compilers.installed import TRIPLETS, Installed, installed_for
from vkconv.compilers.packages import host_architecture
from vkconv.core import DeviceError
from vkconv.device import Device, load_device
from vkconv.device.facts import SCHEMA
from vkconv.device.importer import import_device

LIVE = "live"
"""What stands for the driver's own facts where a device file is asked for."""


@functools.lru_cache(maxsize=64)
def live_facts(gpu: Gpu) -> Device:
    """The device that a GPU's driver shows: by vkconv itself, or where the driver is of another architecture than this
    Python by vulkaninfo. UsageError where it is not installed, DeviceError where it fails."""
    there = installed_for(gpu)
    here = there.architecture == host_architecture()
    said = _by_vkconv(gpu, there) if here else _by_vulkaninfo(gpu, there).facts
    facts = without_invented(gpu, said)
    packages = f"Mesa {there.version}, {driver_of(gpu).title} behind the {driver_of(gpu).shim} shim"
    source = (
        f"vkconv devices --with {gpu.name} --dump: {packages}, without the GPU. The driver's limits, features and "
        "extensions are real; what the shim invents is assumed or left out."
    )
    return Device({**facts, "source": source})


def planning_device(gpu: Gpu, given: str) -> tuple[Device, str]:
    """The facts to plan with for a GPU, and what they are called: the device file that was given, by name or path, or
    `LIVE`; without one that of the GPU, and where it has none what its driver says."""
    name = given or gpu.device or LIVE
    return (live_facts(gpu), "the driver's own facts") if name == LIVE else (load_device(name), name)


def _by_vkconv(gpu: Gpu, there: Installed) -> dict[str, Any]:
    command = there.command(
        gpu, [sys.executable, "-P", "-m", "vkconv", "devices", "--device", "0", "--dump"], _python_libraries()
    )
    # What Python's modules need and the set does not have comes from the system, after all of the set.
    command[command.index("--library-path") + 1] += f":/usr/lib/{TRIPLETS[there.architecture]}"
    said = _run(gpu, command, {**there.environment(gpu), "VKCONV_DEVICE": ""})
    try:
        facts = msgspec.json.decode(said, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DeviceError(f"{gpu.name}: what its driver says is no device file: {error}") from None
    if facts.pop("schema", None) != SCHEMA:
        raise DeviceError(f"{gpu.name}: what its driver says is no device file: it has no schema {SCHEMA}")
    return facts


def _by_vulkaninfo(gpu: Gpu, there: Installed) -> Device:
    program = there.folder / "root" / "usr" / "bin" / "vulkaninfo"
    with tempfile.TemporaryDirectory(prefix="vkconv-") as scratch:
        report = Path(scratch, "report.json")
        _run(gpu, there.command(gpu, [program, "--json=0", "--output", report]), there.environment(gpu))
        return import_device(report)


def _run(gpu: Gpu, command: Sequence[str], environment: Mapping[str, str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment)
    if done.returncode:
        said = "\n  ".join(done.stderr.strip().splitlines()[-3:])
        raise DeviceError(f"{gpu.name}: its driver cannot be asked, exit code {done.returncode}:\n  {said}")
    return done.stdout


def _python_libraries() -> list[Path]:
    """Folders of libraries that this Python brings itself, such as its own libpython: they come before a set's."""
    folders: dict[Path, None] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = Path(line.rpartition(" ")[2])
            if path.name.startswith("libpython") and not str(path).startswith(("/lib", "/usr/lib")):
                folders[path.parent] = None
    return list(folders)
