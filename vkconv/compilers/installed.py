"""Sets of compilers as they lie on this machine: where, which packages, and how a program is started behind a shim."""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from vkconv.compilers.gpus import Gpu, Tried, data, driver_of, set_of, tried
from vkconv.compilers.packages import differences, host_architecture
from vkconv.core import ShaderError, UsageError, cache_dir, cache_write, expand_user, not_a_file

PROGRAM = "pipeline_statistics"
MANIFEST = "installed.json"
_PACKAGE = Path(__file__).resolve().parent.parent
# In Debian's words: the folder of libraries, the loader, and what qemu and compilers call the processor.
TRIPLETS = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}
_LOADERS = {"amd64": "ld-linux-x86-64.so.2", "arm64": "ld-linux-aarch64.so.1"}
_PROCESSORS = {"amd64": "x86_64", "arm64": "aarch64"}
# Variables of this machine's own drivers and layers, which must not reach those behind a shim.
_FOREIGN = ("VK_ADD_DRIVER_FILES", "VK_INSTANCE_LAYERS", "VK_LOADER_DRIVERS_SELECT", "VK_LOADER_DRIVERS_DISABLE")


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a set was made of: its packages by name."""

    packages: dict[str, Tried]
    schema: str = "vkconv.compilers/1"


def compilers_dir() -> Path:
    """The folder of all sets: VKCONV_COMPILERS when that is set, else in the user's cache."""
    root = os.environ.get("VKCONV_COMPILERS")
    return expand_user(root, "VKCONV_COMPILERS") if root else cache_dir() / "compilers"


def sources() -> list[Path]:
    """The C program that compiles pipelines: in ``vkconv/_native`` of an installation, ``native`` of a checkout."""
    for folder in (_PACKAGE / "_native" / "compilers", _PACKAGE.parent / "native" / "compilers"):
        if (folder / "main.c").is_file():
            return sorted(folder.glob("*.[ch]"))
    raise ShaderError(f"no main.c in {_PACKAGE / '_native'}; this installation is incomplete: reinstall vkconv")


class Installed:
    """A set that is there. Raises UsageError, saying how to install it, where it is not."""

    def __init__(self, name: str, folder: Path | None = None) -> None:
        self.name, self.packages = name, data().sets[name]
        self.folder = folder or compilers_dir() / name
        try:
            text = b"" if not_a_file(self.folder / MANIFEST) else (self.folder / MANIFEST).read_bytes()
        except OSError:
            text = b""
        if not text:
            raise UsageError(
                f"the compilers of the set {name} are not installed in {self.folder}: vkconv compilers install {name}"
            )
        try:
            self.manifest = msgspec.json.decode(text, type=Manifest)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: text that is not UTF-8
            raise UsageError(
                f"{self.folder / MANIFEST} is damaged ({error}): vkconv compilers install {name} --again"
            ) from None

    @property
    def version(self) -> str:
        """The version of the package that has the drivers."""
        return self.manifest.packages["mesa-vulkan-drivers"].version

    @property
    def differences(self) -> list[str]:
        """How its packages differ from those that were tried, a line for each."""
        return differences(self.manifest.packages, tried(self.name))

    @property
    def architecture(self) -> str:
        return self.packages.architecture

    @property
    def libraries(self) -> Path:
        """The folder of the unpacked libraries."""
        return self.folder / "root" / "usr" / "lib" / TRIPLETS[self.architecture]

    def program(self) -> Path:
        """The program that compiles pipelines, built anew where its source has changed."""
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources())).hexdigest()[:12]
        path = self.folder / f"{PROGRAM}-{digest}"
        if not path.is_file():
            self._build(path)
        return path

    def _build(self, path: Path) -> None:
        part = path.with_name(f".{path.name}.{os.getpid()}")
        headers = self.folder / "root" / "usr" / "include"  # the machine's own may lack what is new
        files = [path for path in sources() if path.suffix == ".c"]
        command = [*c_compiler(self.architecture), "-std=c11", "-O2", "-I", headers, "-o", part, *files, "-ldl"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace")
            if done.returncode:
                said = "\n  ".join(done.stderr.strip().splitlines()[-5:])
                raise UsageError(f"{PROGRAM} does not compile: {' '.join(map(str, command))}\n  {said}")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def command(self, gpu: Gpu, program: Sequence[str | Path], own: Sequence[Path] = ()) -> list[str]:
        """The command line that runs a program of the set's architecture behind a GPU's shim; libraries in the folders
        ``own`` come before those of the set."""
        loader, path = self.libraries / _LOADERS[self.architecture], ":".join(map(str, (*own, self.libraries)))
        shim = self.libraries / f"lib{driver_of(gpu).shim}_noop_drm_shim.so"
        words = [loader, "--library-path", path, "--preload", shim, "--argv0", program[0], *program]
        return [*map(str, [*self._emulator(), *words])]

    def environment(self, gpu: Gpu) -> dict[str, str]:
        """This process's environment, for a program behind the shim."""
        driver = driver_of(gpu)
        icd = str(self._icd(driver.icd))
        changes = {
            "VK_DRIVER_FILES": icd,
            "VK_ICD_FILENAMES": icd,
            "VK_LOADER_LAYERS_DISABLE": "~all~",
            "MESA_SHADER_CACHE_DISABLE": "1",  # it would hide what compiling takes
            **driver.environment,
            **({driver.variable: gpu.value} if driver.variable else {}),
        }
        return {**{name: value for name, value in os.environ.items() if name not in _FOREIGN}, **changes}

    def _icd(self, name: str) -> Path:
        """A manifest for the loader that names the driver by its full path."""
        library = self.libraries / f"libvulkan_{name}.so"
        if not library.is_file():
            raise UsageError(f"the set {self.name} has no {library.name}: vkconv compilers install {self.name} --again")
        path = self.folder / "icd" / f"{name}.json"
        text = json.dumps(
            {"file_format_version": "1.0.0", "ICD": {"library_path": str(library), "api_version": "1.4.0"}}
        )
        if not path.is_file() or path.read_text() != text:
            with cache_write(path) as file:
                file.write(text.encode())
        return path

    def _emulator(self) -> list[str | Path]:
        return emulator(self.folder, self.architecture)


def emulator(folder: Path, architecture: str) -> list[str | Path]:
    """What must stand before a program of an architecture on this machine: nothing on its own, else a user-mode qemu,
    the set's own or the machine's. UsageError where there is none."""
    if architecture == host_architecture():
        return []
    name = f"qemu-{_PROCESSORS[architecture]}"
    own = folder / "tools" / "usr" / "bin" / name
    found = own if own.is_file() else shutil.which(name) or shutil.which(f"{name}-static")
    if not found:
        raise UsageError(
            f"programs of {architecture} run by {name} on this machine, and there is none: apt-get install qemu-user"
        )
    return [found]


def c_compiler(architecture: str) -> list[str | Path]:
    """A C compiler for an architecture; UsageError that says what to install where there is none."""
    if architecture == host_architecture():
        for name in ("cc", "gcc", "clang"):
            if found := shutil.which(name):
                return [found]
        raise UsageError(
            "there is no C compiler (cc, gcc, clang), which builds what runs the drivers: apt-get install gcc libc6-dev"
        )
    triplet = TRIPLETS[architecture]
    if found := shutil.which(f"{triplet}-gcc"):
        return [found]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc", "-target", f"{triplet}.2.31"]
    raise UsageError(
        f"there is no C compiler for {architecture}: pip install ziglang, or apt-get install "
        f"gcc-{triplet.replace('_', '-')}"
    )


def installed(name: str) -> Installed | None:
    """A set, or None where it is not installed."""
    try:
        return Installed(name)
    except UsageError:
        return None


def installed_for(gpu: Gpu) -> Installed:
    """The set that has a GPU's compiler. UsageError where it is not installed."""
    return Installed(set_of(gpu))
