"""Holding what a device computes to float64 references: single calls, whole models node by node, whole devices."""

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

__all__ = [
    "Checked",
    "Expected",
    "Ran",
    "allowed_errors",
    "check_call",
    "compare",
    "compare_output",
    "expect",
    "on_route",
    "run_call",
]
