"""vkconv: a Vulkan compute runtime for convolution networks, on Kompute.

session = vkconv.load("model.onnx")
outputs = session.run({"x": array})
"""

from typing import TYPE_CHECKING

from vkconv.version import VERSION

if TYPE_CHECKING:
    from vkconv.backend.arrays import DeviceArray as DeviceArray
    from vkconv.backend.arrays import array as array
    from vkconv.core import VkconvError as VkconvError
    from vkconv.graph import Graph as Graph
    from vkconv.graph import Node as Node
    from vkconv.graph import TensorSpec as TensorSpec
    from vkconv.graph import load_model as load_model
    from vkconv.loading import load as load
    from vkconv.plan.planner import Options as Options
    from vkconv.session import Session as Session

    from . import bench as bench
    from . import check as check
    from . import functional as functional
    from . import testing as testing

__version__ = VERSION

# Parts that `import vkconv` gives by their names.
_PARTS = ("bench", "check", "functional", "testing")
# Looked up at first use, so that planning and the command line start without Kompute and the libraries behind it.
_HOMES = {
    "DeviceArray": "vkconv.backend.arrays",
    "Graph": "vkconv.graph",
    "Node": "vkconv.graph",
    "Options": "vkconv.plan.planner",
    "Session": "vkconv.session",
    "TensorSpec": "vkconv.graph",
    "VkconvError": "vkconv.core",
    "array": "vkconv.backend.arrays",
    "load": "vkconv.loading",
    "load_model": "vkconv.graph",
}

__all__ = [
    "DeviceArray",
    "Graph",
    "Node",
    "Options",
    "Session",
    "TensorSpec",
    "VkconvError",
    "__version__",
    "array",
    "bench",
    "check",
    "functional",
    "load",
    "load_model",
    "testing",
]


def __getattr__(name: str) -> object:
    import importlib

    if name in _PARTS:
        return importlib.import_module(f"vkconv.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'vkconv' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
