"""Setting up a set of compilers: packages found, checked, downloaded and unpacked into the user's cache."""

import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from vkconv.compilers.gpus import PackageSet, Tried, data, tried
from vkconv.compilers.installed import MANIFEST, Installed, Manifest, c_compiler, compilers_dir, emulator
from vkconv.compilers.packages import Apt, Package, differences, host_architecture, unpack
from vkconv.core import UsageError


@dataclasses.dataclass(frozen=True)
class Offer:
    """What would be downloaded for a set, and how it differs from what was tried."""

    packages: tuple[Package, ...]
    tools: tuple[Package, ...]
    differences: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        return sum(p.nbytes for p in (*self.packages, *self.tools))


def install(
    name: str, agreed: Callable[[Offer], bool], say: Callable[[str], None], any_version: bool = False
) -> Installed | None:
    """Set up a set, in place of one that is there; None where ``agreed`` says no to what would be downloaded.

    Raises UsageError where something is missing on this machine or cannot be had, or, without ``any_version``, where
    other packages are served than those that were tried.
    """
    packages = data().sets[name]
    c_compiler(packages.architecture)  # before anything is downloaded
    root = compilers_dir()
    root.mkdir(parents=True, exist_ok=True)
    with _folder(root) as fresh:
        apt = Apt(fresh / "apt", packages.architecture, packages.suites)
        say(f"reading what {' and '.join(packages.suites)} have for {packages.architecture}")
        apt.update()
        found = apt.resolve(packages)
        helper = _tools(fresh, packages)
        tools = helper[1] if helper else ()
        versions = {p.name: Tried(p.version, p.sha256) for p in (*found, *tools)}
        offer = Offer(tuple(found), tuple(tools), tuple(differences(versions, tried(name))))
        if offer.differences and not any_version:
            raise UsageError(
                "\n  ".join(
                    [
                        f"{len(offer.differences)} of {len(versions)} packages are not those that were tried:",
                        *offer.differences[:10],
                        *(["..."] if len(offer.differences) > 10 else []),
                        "other versions of the drivers give other statistics, or none: --any-version goes on with them",
                    ]
                )
            )
        if not agreed(offer):
            return None
        say(f"downloading {len(found) + len(tools)} packages, {offer.nbytes / 1e6:.0f} MB")
        for file in apt.download(found):
            unpack(file, fresh / "root")
        if helper:
            for file in helper[0].download(tools):
                unpack(file, fresh / "tools")
        shutil.rmtree(fresh / "apt")
        shutil.rmtree(fresh / "apt-tools", ignore_errors=True)
        text = msgspec.json.encode(Manifest(versions))
        (fresh / MANIFEST).write_bytes(msgspec.json.format(text, indent=1))
        there = Installed(name, fresh)
        emulator(fresh, packages.architecture)
        there.program()
        _replace(fresh, root / name)
    return Installed(name)


def _tools(fresh: Path, packages: PackageSet) -> tuple[Apt, Sequence[Package]] | None:
    """Where programs of the set do not run here by themselves: what has qemu, for this machine's architecture."""
    if not packages.emulator or packages.architecture == host_architecture():
        return None
    apt = Apt(fresh / "apt-tools", host_architecture(), packages.suites)
    apt.update()
    wanted = msgspec.structs.replace(packages, packages=packages.emulator)
    return apt, [package for package in apt.resolve(wanted) if package.name in packages.emulator]


@contextlib.contextmanager
def _folder(root: Path) -> Iterator[Path]:
    """A new folder, removed unless it was moved away."""
    folder = Path(tempfile.mkdtemp(prefix=".new.", dir=root))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _replace(fresh: Path, place: Path) -> None:
    """Put a folder in the place of another, which goes."""
    old = place.with_name(f".old.{place.name}.{os.getpid()}")
    if place.exists():
        place.rename(old)
    fresh.rename(place)
    shutil.rmtree(old, ignore_errors=True)
