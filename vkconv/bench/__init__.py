"""Microbenchmarks: calls checked against their reference, then timed, on one device; results that can be compared.

result = vkconv.bench.run("conv2d:x=1x64x56x56,w=64x64x3x3,p=1", routes=["all"])
vkconv.bench.compare_results(vkconv.bench.read_result("before.json"), result)
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vkconv.bench.api import run as run
    from vkconv.bench.compare import Comparison as Comparison
    from vkconv.bench.compare import compare as compare_results
    from vkconv.bench.files import read_result as read_result
    from vkconv.bench.rows import Result as Result
    from vkconv.bench.sampling import BenchOptions as BenchOptions

__all__ = ["BenchOptions", "Comparison", "Result", "compare_results", "read_result", "run"]

# Looked up at first use: what reads suites, to plan them, starts without a device.
_HOMES = {
    "BenchOptions": "engine",
    "Comparison": "compare",
    "compare_results": "api",
    "Result": "rows",
    "read_result": "files",
    "run": "api",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'vkconv.bench' has no attribute {name!r}")
    return getattr(importlib.import_module(f"vkconv.bench.{_HOMES[name]}"), name)
