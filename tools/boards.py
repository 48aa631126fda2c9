"""What the tests of phones and boards need and is not installed here, unpacked beside the system:

    python tools/boards.py                # all that tests need, into ~/.cache/vkconv/boards (140 MB to download)
    python tools/boards.py adb            # adb alone

lavapipe of arm64 with its C library, a user-mode qemu that runs it, and adb, as Debian 13 and its backports have them;
and PyPI's ziglang, which builds the player for arm64, in this virtual environment. No root is needed. What is there is
left as it is. The lavapipe is that of `tools/drivers.sh mesa`, for another processor.
"""

import dataclasses
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from vkconv.compilers.gpus import PackageSet
from vkconv.compilers.packages import Apt, host_architecture, unpack
from vkconv.core import UsageError, cache_dir

ZIG = "ziglang==0.17.1"
TRIPLETS = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}
LOADERS = {"amd64": "ld-linux-x86-64.so.2", "arm64": "ld-linux-aarch64.so.1"}
# apt brings these along for the packages' own scripts
_WITHOUT = ("debconf", "dpkg", "libpython*", "media-types", "netbase", "python3*", "tar", "tzdata")


@dataclasses.dataclass(frozen=True)
class Part:
    """Packages that are unpacked together. ``alone``: without what they depend on."""

    suites: tuple[str, ...]
    packages: tuple[str, ...]
    architecture: str = ""
    alone: bool = False
    without: tuple[str, ...] = _WITHOUT

    def __post_init__(self) -> None:
        object.__setattr__(self, "architecture", self.architecture or host_architecture())

    @property
    def key(self) -> str:
        return hashlib.sha256(repr(dataclasses.astuple(self)).encode()).hexdigest()[:12]


_SUITES = ("trixie", "trixie-backports")
_LAVAPIPE = ("mesa-vulkan-drivers", "libvulkan1", "vulkan-validationlayers/trixie")
PARTS = {
    "lavapipe": Part(_SUITES, _LAVAPIPE, "arm64"),
    "qemu": Part(("trixie",), ("qemu-user",), alone=True),  # its programs are linked statically
    "adb": Part(("trixie",), ("adb",)),
    "lavapipe-here": Part(_SUITES, _LAVAPIPE),  # for tools/beside_arm64.py
    # for tools/build_arm64_wheel.py: a compiler, and the system that a wheel is built for and tried on
    "cross": Part(("bookworm",), ("g++-aarch64-linux-gnu",)),
    "python": Part(
        ("bookworm",),
        ("python3.11-venv", "libpython3.11-dev", "libvulkan-dev", "libfmt-dev", "mesa-vulkan-drivers"),
        "arm64",
        without=("debconf", "dpkg", "media-types", "netbase", "tar"),
    ),
}
NEEDED = ("lavapipe", "qemu", "adb")


def folder(name: str) -> Path | None:
    """Where a part was unpacked; None where it was not."""
    place = _place(name)
    return place / "root" if (place / "installed.json").is_file() else None


def install(name: str) -> Path:
    """Unpack a part, unless it is there. Raises UsageError, saying what is missing, where it cannot be had."""
    if there := folder(name):
        return there
    part, place = PARTS[name], _place(name)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new.", dir=place.parent) as scratch:
        fresh = Path(scratch) / name
        apt = Apt(fresh / "apt", part.architecture, part.suites)
        apt.update()
        found = apt.resolve(PackageSet(part.architecture, part.suites, part.packages, part.without))
        found = [package for package in found if not part.alone or package.name in part.packages]
        print(f"boards: {name}: {len(found)} packages, {sum(p.nbytes for p in found) / 1e6:.0f} MB", file=sys.stderr)
        for file in apt.download(found):
            unpack(file, fresh / "root")
        shutil.rmtree(fresh / "apt")
        (fresh / "installed.json").write_text(json.dumps({p.name: p.version for p in found}, indent=1))
        try:
            fresh.rename(place)
        except OSError:
            if folder(name) is None:  # another run may have been faster
                raise
    return place / "root"


def versions(name: str) -> dict[str, str]:
    """The versions of a part's packages."""
    found = json.loads((_place(name) / "installed.json").read_text())
    return {str(package): str(version) for package, version in found.items()}


def emulated() -> list[str]:
    """What stands before a program of arm64 on this machine: its loader with the unpacked libraries, behind qemu where
    the processor is another. UsageError where it was not set up."""
    words = loaded("lavapipe")
    if host_architecture() == "arm64":
        return words
    return [str(_there("qemu") / "usr" / "bin" / "qemu-aarch64"), *words]


def loaded(name: str) -> list[str]:
    """What stands before a program of a part's architecture: its own loader and libraries."""
    folder = _libraries(name)
    return [str(folder / LOADERS[PARTS[name].architecture]), "--library-path", str(folder)]


def driver_files(name: str, place: Path) -> dict[str, str]:
    """The environment in which Vulkan's loader finds the lavapipe of a part, by a file written at ``place``."""
    driver = {"library_path": str(_libraries(name) / "libvulkan_lvp.so"), "api_version": "1.4.0"}
    place.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": driver}))
    layers = {"VK_LOADER_LAYERS_DISABLE": "~implicit~", "VK_LAYER_PATH": str(place.parent / "layers")}
    return {"VK_DRIVER_FILES": str(place), "VK_ICD_FILENAMES": str(place), **layers}


def adb() -> list[str]:
    """The command that is adb, with its own C library. UsageError where it was not set up."""
    program = _there("adb") / "usr" / "lib" / "android-sdk" / "platform-tools" / "adb"
    *words, path = loaded("adb")
    return [*words, f"{path}:{path}/android", str(program)]


def _libraries(name: str) -> Path:
    return _there(name) / "usr" / "lib" / TRIPLETS[PARTS[name].architecture]


def _there(name: str) -> Path:
    found = folder(name)
    if found is None:
        raise UsageError(f"{name} is not set up: python tools/boards.py {name}")
    return found


def _place(name: str) -> Path:
    return cache_dir() / "boards" / f"{name}-{PARTS[name].key}"


def _install_zig() -> None:
    """A compiler for arm64, where there is none."""
    if shutil.which("aarch64-linux-gnu-g++") or importlib.util.find_spec("ziglang"):
        return
    done = subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", ZIG])
    if done.returncode:
        raise UsageError(f"{ZIG} cannot be installed, and there is no aarch64-linux-gnu-g++")


def main(names: list[str]) -> int:
    """Set up parts, or all; in CI what cannot be had is a failure."""
    if unknown := set(names) - PARTS.keys():
        print(f"boards: there is no {', '.join(sorted(unknown))}; {', '.join(PARTS)}", file=sys.stderr)
        return 2
    try:
        for name in names or NEEDED:
            print(f"{name}: {install(name)}")
        if not names:
            _install_zig()
    except UsageError as error:
        print(f"boards: {error}", file=sys.stderr)
        return 1 if os.environ.get("CI") == "true" else 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
