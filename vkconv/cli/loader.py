"""What the Vulkan loader would find: its version, driver manifests (ICD files) and layers, without making a device."""

import contextlib
import ctypes
import ctypes.util
import json
import os
from collections.abc import Iterator
from pathlib import Path

from vkconv.core import not_a_file

VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"
_LIBRARIES = ("libvulkan.so.1", "libvulkan.so", "libvulkan.1.dylib", "libMoltenVK.dylib", "vulkan-1.dll")
# Variables that replace the search for manifests, newest name first, as the loader's documentation gives them.
_REPLACING = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")


class _LayerProperties(ctypes.Structure):
    """VkLayerProperties."""

    _fields_ = (
        ("layerName", ctypes.c_char * 256),
        ("specVersion", ctypes.c_uint32),
        ("implementationVersion", ctypes.c_uint32),
        ("description", ctypes.c_char * 256),
    )


def load_library() -> ctypes.CDLL | None:
    """The Vulkan loader's library, or None when there is none."""
    for name in filter(None, (*_LIBRARIES, ctypes.util.find_library("vulkan"))):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return None


def instance_version(library: ctypes.CDLL) -> str:
    """The instance version the loader offers; 1.0 has no call to ask."""
    try:
        ask = library.vkEnumerateInstanceVersion
    except AttributeError:
        return "1.0"
    version = ctypes.c_uint32()
    ask(ctypes.byref(version))
    packed = version.value
    return f"{packed >> 22 & 0x7F}.{packed >> 12 & 0x3FF}.{packed & 0xFFF}"


def layers(library: ctypes.CDLL) -> list[str]:
    """Names of the instance layers that are installed."""
    count = ctypes.c_uint32()
    library.vkEnumerateInstanceLayerProperties(ctypes.byref(count), None)
    properties = (_LayerProperties * count.value)()
    library.vkEnumerateInstanceLayerProperties(ctypes.byref(count), properties)
    return [p.layerName.decode(errors="replace") for p in properties[: count.value]]


def driver_manifests() -> list[tuple[Path, str]]:
    """Every ICD file the loader would read, with the library it names or what is wrong with it."""
    return [(path, library_of(path)) for path in dict.fromkeys(_manifest_paths())]


def _manifest_paths() -> Iterator[Path]:
    variable = next((v for v in _REPLACING if os.environ.get(v)), None)
    added = os.environ.get("VK_ADD_DRIVER_FILES", "")
    entries = [*added.split(os.pathsep), *(os.environ[variable].split(os.pathsep) if variable else ())]
    for entry in filter(None, entries):
        yield from sorted(Path(entry).glob("*.json")) if Path(entry).is_dir() else [Path(entry)]
    if variable is None:
        for folder in _search_folders():
            yield from sorted((folder / "vulkan" / "icd.d").glob("*.json"))


def _search_folders() -> Iterator[Path]:
    """The base folders of the loader's search on Linux: configuration before data, the user's before the system's."""
    home = Path.home()
    yield Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    yield from map(Path, (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":"))
    yield Path("/etc")
    yield Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    yield from map(Path, (os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share").split(":"))


def library_of(path: Path) -> str:
    """The library that a driver's manifest names, and its Vulkan; or what is wrong with the manifest."""
    if problem := not_a_file(path):
        return problem
    try:
        icd = json.loads(path.read_text(encoding="utf-8"))["ICD"]
        return f"{icd['library_path']}, Vulkan {icd['api_version']}"
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return "is no ICD manifest"
