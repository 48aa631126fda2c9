"""Holding what a device computes to float64 references: single calls, whole models node by node, whole devices."""

import importlib
from typing import TYPE_CHECKING

from vkconv.check.calls import (
    Checked,
    Expected,
    Ran,
    allowed_errors,
    check_call,
    compare,
    compare_output,
    expect,
    on_route,
    run_call,
)

if TYPE_CHECKING:
    from vkconv.check.api import run as run
    from vkconv.check.found import CheckResult as CheckResult

__all__ = [
    "CheckResult",
    "Checked",
    "Expected",
    "Ran",
    "allowed_errors",
    "check_call",
    "compare",
    "compare_output",
    "expect",
    "on_route",
    "run",
    "run_call",
]

# Looked up at first use: they need sessions, which single calls do without.
_HOMES = {"CheckResult": "found", "run": "api"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'vkconv.check' has no attribute {name!r}")
    return getattr(importlib.import_module(f"vkconv.check.{_HOMES[name]}"), name)
