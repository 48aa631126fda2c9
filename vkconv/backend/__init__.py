"""The runtime side of vkconv: the only package that imports kp and the native bridge."""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path


def _load_kp() -> None:
    """Make the kp that was built with the bridge the one that is imported as ``kp``, unless one is already: another
    may have been built with another pybind11 or compiler, and could not share its types."""
    spec = None if "kp" in sys.modules else PathFinder.find_spec("kp", [str(Path(p) / "kompute") for p in __path__])
    if spec is None or spec.loader is None:
        return
    try:
        sys.modules["kp"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError:  # without a Vulkan loader, say: the bridge, which needs kp, says so
        sys.modules.pop("kp", None)


_load_kp()
