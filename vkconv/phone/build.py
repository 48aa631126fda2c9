"""The player, built from the sources that come with vkconv, for the machine that is to play."""

import contextlib
import dataclasses
import gzip
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from vkconv.core import DeviceError, UsageError, atomic_write, cache_dir, expand_user

_PACKAGE = Path(__file__).parents[1]
_FLAGS = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-Wno-missing-field-initializers")
_TIMEOUT_S = 600
_API = 29  # Android 10, the first whose phones have Vulkan 1.1 by rule


@dataclasses.dataclass(frozen=True)
class Abi:
    """A processor, by the names that ``uname -m``, Android, GNU and zig have for it."""

    machine: str
    android: str
    gnu: str
    zig: str


ABIS = {
    abi.machine: abi
    for abi in (
        Abi("aarch64", "aarch64-linux-android", "aarch64-linux-gnu", "aarch64-linux-gnu.2.28"),
        Abi("x86_64", "x86_64-linux-android", "x86_64-linux-gnu", "x86_64-linux-gnu.2.28"),
    )
}
_OTHER_NAMES = {"arm64-v8a": "aarch64", "arm64": "aarch64", "amd64": "x86_64", "armv8l": "aarch64"}


def abi_of(name: str) -> Abi:
    """The processor of that name, of ``uname -m`` or Android's. Raises UsageError for others."""
    machine = _OTHER_NAMES.get(name, name)
    if machine not in ABIS:
        raise UsageError(f"the player is not built for {name!r}; there are {', '.join([*ABIS, *_OTHER_NAMES])}")
    return ABIS[machine]


def sources() -> list[Path]:
    """The player's sources: in ``vkconv/_native`` of an installation, ``native`` of a checkout."""
    for folder in (_PACKAGE / "_native" / "player", _PACKAGE.parent / "native" / "player"):
        if (folder / "main.cpp").is_file():
            return sorted(folder.glob("*.[ch]pp"))
    raise DeviceError(f"no main.cpp in {_PACKAGE / '_native'}; this installation is incomplete: reinstall vkconv")


def build_player(abi: Abi, *, android: bool) -> Path:
    """The player for a processor: the one that came with vkconv, where there is one, else built when it is not there
    yet. VKCONV_PLAYER names one that is to be taken instead.

    VKCONV_PLAYER_CXX is a compiler's command to take. Raises DeviceError where there is no compiler, or no headers of
    Vulkan, or the compiler fails.
    """
    if given := os.environ.get("VKCONV_PLAYER"):
        path = expand_user(given, "VKCONV_PLAYER")
        if not path.is_file():
            raise UsageError(f"VKCONV_PLAYER={given} is no file")
        return path
    if not android and "VKCONV_PLAYER_CXX" not in os.environ and (found := _prebuilt(abi)):
        return found
    command = compiler(abi, android=android)
    identity = _identity(*command, *_FLAGS)
    built = cache_dir() / "player" / f"{abi.machine}-{'android' if android else 'linux'}-{identity}" / "player"
    if not built.is_file():
        compile_player(command, built, own_headers=android and "VKCONV_PLAYER_CXX" not in os.environ)
    return built


def prebuilt_name(abi: Abi) -> str:
    """The file of a player for Linux that wheels bring, packed; it has a digest of the player's sources in its name."""
    return f"player-{abi.machine}-linux-{_identity(*_FLAGS)}.gz"


def _prebuilt(abi: Abi) -> Path | None:
    packed = _PACKAGE / "_native" / "prebuilt" / prebuilt_name(abi)
    if not packed.is_file():
        return None
    unpacked = cache_dir() / "player" / packed.stem / "player"
    if not unpacked.is_file():
        with atomic_write(unpacked) as file:
            file.write(gzip.decompress(packed.read_bytes()))
        unpacked.chmod(0o755)
    return unpacked


def compile_player(command: Sequence[str], out: Path, *, own_headers: bool = False) -> None:
    """Compile the player with a compiler's command; ``own_headers``: it has Vulkan's. Raises DeviceError."""
    with tempfile.TemporaryDirectory(prefix="vkconv-") as scratch, _headers(Path(scratch), own_headers) as include:
        made = Path(scratch) / "player"
        units = [str(path) for path in sources() if path.suffix == ".cpp"]
        words = [*command, *_FLAGS, *include, *units, "-ldl", "-o", str(made)]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DeviceError(f"the player is not built: {shlex.join(command)}: {error}") from None
        if done.returncode or not made.is_file():
            said = "\n  ".join((done.stderr or done.stdout).strip().splitlines()[:12])
            raise DeviceError(f"the player does not compile with {shlex.join(command)}:\n  {said}")
        with atomic_write(out) as file:
            file.write(made.read_bytes())
        out.chmod(0o755)


def compiler(abi: Abi, *, android: bool) -> list[str]:
    """The compiler's command for a processor, with its own flags. Raises DeviceError that says what to install."""
    if given := os.environ.get("VKCONV_PLAYER_CXX"):
        return shlex.split(given)
    if android:
        return _ndk(abi)
    here = abi.machine == abi_of(platform.machine()).machine
    for name in (["c++", "g++", "clang++"] if here else []) + [f"{abi.gnu}-g++"]:
        if path := shutil.which(name):
            return [path, "-static-libstdc++", "-static-libgcc"]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "c++", "-target", abi.zig]
    raise DeviceError(
        f"no compiler here builds the player for {abi.machine} Linux: install {abi.gnu}-g++ (Debian's "
        f"g++-{abi.gnu.replace('_', '-')}), or pip install ziglang, or give the command as VKCONV_PLAYER_CXX, or a "
        "player that was built elsewhere as VKCONV_PLAYER"
    )


def _ndk(abi: Abi) -> list[str]:
    for variable in ("ANDROID_NDK_HOME", "ANDROID_NDK_ROOT", "ANDROID_NDK"):
        if root := os.environ.get(variable):
            found = sorted(Path(root).glob(f"toolchains/llvm/prebuilt/*/bin/{abi.android}{_API}-clang++"))
            if not found:
                raise DeviceError(
                    f"{variable}={root} holds no {abi.android}{_API}-clang++: name an NDK of release 21 on"
                )
            return [str(found[0]), "-static-libstdc++"]
    raise DeviceError(
        f"no compiler here builds the player for Android on {abi.machine}: set ANDROID_NDK_HOME to an NDK, or "
        "VKCONV_PLAYER_CXX to the command of a clang with Android's sysroot, or VKCONV_PLAYER to a player that was "
        "built elsewhere"
    )


@contextlib.contextmanager
def _headers(scratch: Path, own: bool) -> Iterator[list[str]]:
    """Vulkan's headers, and no others of this machine, as the compiler's flags."""
    if own:
        yield []
        return
    places = [Path(os.environ["VULKAN_SDK"]) / "include"] if os.environ.get("VULKAN_SDK") else []
    places += [Path("/usr/include"), Path("/usr/local/include")]
    found = next((place for place in places if (place / "vulkan" / "vulkan_core.h").is_file()), None)
    if found is None:
        looked = ", ".join(map(str, places))
        raise DeviceError(
            f"no vulkan/vulkan_core.h in {looked}: install Vulkan's headers (Debian's libvulkan-dev) or set VULKAN_SDK"
        )
    include = scratch / "include"
    include.mkdir()
    for name in ("vulkan", "vk_video"):
        if (found / name).is_dir():
            (include / name).symlink_to(found / name)
    yield ["-I", str(include)]


def _identity(*words: str) -> str:
    """A digest of the sources, and of what else made a player."""
    files = (hashlib.sha256(path.read_bytes()).hexdigest() for path in sources())
    return hashlib.sha256("\n".join([*words, *files]).encode()).hexdigest()[:16]
