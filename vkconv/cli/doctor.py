"""``vkconv doctor``: is this machine usable, and if not, what to do. Every device really runs a kernel."""

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import os
import platform
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import typer

from vkconv import __version__
from vkconv.cli import loader
from vkconv.cli.options import JsonOption
from vkconv.cli.output import show, show_json
from vkconv.cli.probe import probe
from vkconv.core import DeviceError, ShaderError, UsageError, VkconvError, bytes_str, cache_dir
from vkconv.files import is_ours
from vkconv.table import Column, Table

Status = Literal["ok", "warn", "fail"]

_INSTALL_DRIVER = (
    "install a Vulkan driver (Debian: apt-get install libvulkan1 mesa-vulkan-drivers, which has the CPU driver "
    "lavapipe), or point VK_DRIVER_FILES at its ICD file"
)
_KERNEL = "kernel on device"


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One row: what was looked at, how it is, what was found, and what to do about it."""

    check: str
    status: Status
    detail: str
    todo: str = ""


def doctor(as_json: JsonOption = False) -> None:
    """Check everything vkconv needs, and run a kernel on every device.

    Exit code 0 when all is fine, 1 when something needed is broken, 3 when no device works.
    """
    checks = [*_python(), *_vulkan(), *_shaders(), _cache(), *_formats()]
    code = exit_code(checks)
    if as_json:
        rows = [dataclasses.asdict(check) for check in checks]
        show_json({"schema": "vkconv.doctor/1", "exit_code": code, "checks": rows})
    else:
        columns = [Column(name) for name in ("check", "status", "detail")]
        todo = [f"{c.check}: {c.todo}" for c in checks if c.todo]
        show(Table("", columns, [(c.check, c.status, c.detail) for c in checks]), *todo, _VERDICTS[code])
    raise typer.Exit(code)


_VERDICTS = {0: "this machine is ready", 1: "something that vkconv needs is broken", 3: "no device works"}


def exit_code(checks: list[Check]) -> int:
    """3 when no device ran its kernel, else 1 when any check failed, else 0."""
    if not any(c.check.startswith(_KERNEL) and c.status == "ok" for c in checks):
        return DeviceError.exit_code
    return int(any(c.status == "fail" for c in checks))


def _python() -> Iterator[Check]:
    yield Check("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield Check("vkconv", "ok", __version__)


def _vulkan() -> Iterator[Check]:
    library = loader.load_library()
    if library is None:
        yield Check("Vulkan loader", "fail", "not found", "install it (Debian: apt-get install libvulkan1)")
    else:
        yield Check("Vulkan loader", "ok", f"Vulkan {loader.instance_version(library)}")
    manifests = loader.driver_manifests()
    found = "; ".join(f"{path} ({library_path})" for path, library_path in manifests)
    yield Check("ICD files", "ok", found) if found else Check("ICD files", "fail", "none found", _INSTALL_DRIVER)
    if library is not None:
        yield _validation(library)
    try:
        answer = probe()
    except DeviceError as error:
        what, _, todo = str(error).partition("; ")
        yield Check("bridge", "fail", what, todo or "run make setup in the checkout, or reinstall vkconv")
        return
    build = ", ".join(f"{name} {version}" for name, version in answer["build"].items())
    yield Check("bridge", "ok", f"shares its types with the kp at {answer['kp']}; {build}")
    if not answer["devices"]:
        yield Check("devices", "fail", "none", _INSTALL_DRIVER)
    for index, device in enumerate(answer["devices"]):
        detail = f"{device['name']}, {device['kind']}, driver {device['driver']}, Vulkan {device['vulkan']}"
        yield Check(f"device {index}", "ok", detail)
        for quirk in device["quirks"]:
            told = f"{quirk['id']}: {quirk['effect']}; {quirk['action']} ({quirk['source']})"
            yield Check(f"quirk of device {index}", "ok", told)
        yield from _tried(index)


def _validation(library: Any) -> Check:
    if loader.VALIDATION_LAYER in loader.layers(library):
        return Check("validation layer", "ok", f"found; VK_INSTANCE_LAYERS={loader.VALIDATION_LAYER} turns it on")
    return Check("validation layer", "ok", "absent, needed by vkconv's own tests only")


def _tried(index: int) -> Iterator[Check]:
    name = f"{_KERNEL} {index}"
    try:
        answer = probe(index)
    except DeviceError as error:
        what, _, todo = str(error).partition("; ")
        yield Check(name, "fail", what, todo or "update the driver, or choose another device with --device")
        return
    elements, wrong = answer["elements"], answer["wrong"]
    if any(wrong):
        detail = f"relu(a + b): {', '.join(map(str, wrong))} of {elements} elements wrong in three runs"
        yield Check(name, "fail", detail, "do not use this device; update its driver, and report it with this table")
    else:
        first, built = answer["first_run_us"] / 1e3, answer["compile_us"] / 1e3
        yield Check(name, "ok", f"relu(a + b) right in three runs; compile {built:.3g} ms, first run {first:.3g} ms")
    yield _timestamps(index, answer)


def _timestamps(index: int, answer: dict[str, Any]) -> Check:
    kernels, gpu_us, wall_us = answer["kernel_us"], answer["gpu_us"], answer["wall_us"]
    detail = f"tick {answer['tick_ns']:g} ns; kernels {sum(kernels):.4g} us of a run of {wall_us:.4g} us"
    if min(kernels) >= 0 and 0 < gpu_us <= wall_us:
        return Check(f"timestamps {index}", "ok", detail)
    return Check(
        f"timestamps {index}", "warn", detail, "do not trust --profile on this device; other timings are the host's"
    )


def _shaders() -> Iterator[Check]:
    from vkconv.compiler import prebuilt_valid
    from vkconv.glslang import find_glslang
    from vkconv.ops import all_shaders

    try:
        tool = find_glslang()
        compiler = Check("glslangValidator", "ok", str(tool))
    except ShaderError as error:
        what, _, todo = str(error).partition("; ")
        compiler = Check("glslangValidator", "warn", what, f"needed only to change shaders; {todo}")
    shaders = set(all_shaders())
    try:
        valid = prebuilt_valid(shaders)
    except VkconvError as error:
        yield compiler
        yield Check("shaders", "fail", str(error), "reinstall vkconv")
        return
    detail = f"{valid} of {len(shaders)} prebuilt and up to date"
    if valid == len(shaders):
        yield compiler
        yield Check("shaders", "ok", detail)
    elif compiler.status == "ok":
        yield compiler
        yield Check("shaders", "ok", f"{detail}; the others are compiled when first used")
    else:
        yield dataclasses.replace(compiler, status="fail")
        yield Check("shaders", "fail", detail, "install glslangValidator, or reinstall vkconv")


def _files(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The files under a folder, links not followed; those that another process takes away meanwhile left out."""
    for folder, _, names in os.walk(root):
        for name in names:
            with contextlib.suppress(OSError):
                found = Path(folder, name).lstat()
                if not stat.S_ISDIR(found.st_mode):
                    yield Path(folder, name), found


def _is_ours(folder: Path, open_to: int) -> bool:
    """Whether a folder is this user's alone, or has gone."""
    try:
        return is_ours(folder.stat(), open_to)
    except FileNotFoundError:
        return True


def _cache() -> Check:
    try:
        root = cache_dir()
    except UsageError as error:
        what, _, todo = str(error).partition("; ")
        return Check("cache", "fail", what, todo)
    files = dict(_files(root))
    kinds = sorted({p.relative_to(root).parts[0] for p in files})
    sizes = [(k, [found.st_size for p, found in files.items() if p.relative_to(root).parts[0] == k]) for k in kinds]
    held = "; ".join(f"{kind}: {len(each)} files, {bytes_str(sum(each))}" for kind, each in sizes) or "empty"
    existing = next(p for p in (root, *root.parents) if p.exists())
    open_to = stat.S_IWOTH | stat.S_IWGRP
    read = [p for p in files if p.relative_to(root).parts[0] in ("spirv", "interfaces", "pipelines")]
    unused = [p for p in read if not (is_ours(files[p], open_to) and _is_ours(p.parent, stat.S_IWOTH))]
    if unused:
        what = f"{len(unused)} of {len(read)} files in {root} are not used: others own them, or may write there"
        return Check("cache", "warn", what, f"delete {root}, or set VKCONV_CACHE_DIR to a folder of your own")
    if os.access(existing, os.W_OK):
        return Check("cache", "ok", f"{root} ({held})")
    return Check(
        "cache", "warn", f"{existing} is not writable", "set VKCONV_CACHE_DIR; until then every start compiles"
    )


def _formats() -> Iterator[Check]:
    """The packages that read models."""
    for package, what in (("onnx", ".onnx"), ("tflite", ".tflite")):
        if importlib.util.find_spec(package) is None:
            yield Check(package, "warn", f"not installed: {what} files cannot be read", f"pip install {package}")
        else:
            yield Check(package, "ok", importlib.metadata.version(package))
