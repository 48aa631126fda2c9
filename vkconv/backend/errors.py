"""From what Vulkan, Kompute and the dynamic loader say to a DeviceError that says what to do."""

import contextlib
from collections.abc import Iterator
from types import ModuleType

from vkconv.core import DeviceError

_BUILD_HINT = (
    "vkconv brings the kp that fits its bridge: install vkconv again, and import no other kp before it "
    "(libvulkan1 must be there: Debian's Vulkan loader)"
)


def import_bridge() -> ModuleType:
    """The bridge module with kp's types loaded; DeviceError saying what to install or rebuild otherwise."""
    try:
        import kp  # noqa: F401 - registers the types that the bridge returns

        from vkconv.backend import _bridge
    except ImportError as error:
        raise DeviceError(f"the Vulkan backend does not load ({error}); {_BUILD_HINT}") from error
    except TypeError as error:
        raise DeviceError(f"kp and the bridge do not share their types ({error}); {_BUILD_HINT}") from error
    return _bridge


@contextlib.contextmanager
def device_errors(where: str) -> Iterator[None]:
    """Turn a failed Vulkan call into a DeviceError that names ``where`` it happened."""
    bridge = import_bridge()
    try:
        yield
    except (bridge.VulkanError, TypeError) as error:
        raise_as_device_error(error, where)
        raise


def raise_as_device_error(error: BaseException, where: str) -> None:
    """The DeviceError that an error of the bridge is to users; nothing for other errors."""
    if isinstance(error, import_bridge().VulkanError):
        raise DeviceError(f"{where}: {error}") from error
    if isinstance(error, TypeError) and "Unregistered type" in str(error):
        raise DeviceError(f"{where}: {error}; {_BUILD_HINT}") from error
