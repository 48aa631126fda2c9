"""Rows that are reduced to a number: the two routes that reduce, softmax and layer_norm share.

``workgroup`` gives a row to a workgroup, whose lanes meet in shared memory; ``serial`` gives it to one
invocation. On a CPU driver the second is the better one always: its lanes are SIMD lanes, shared memory is slow.
"""

from collections.abc import Callable, Sequence

from vkconv.core import DType, ceil_div
from vkconv.device import Device
from vkconv.ops.base import linear_groups
from vkconv.ops.needs import ON_GPU, invocations, loop_iterations, shared_bytes
from vkconv.ops.strided import LOCAL
from vkconv.route import Call, Need, Route
from vkconv.shader import Dispatch, Program, Shader, Word, read, write

_WORKGROUP = (("WORKGROUP", ""),)
_LANES = (256, 128)  # the second is what every Vulkan device has
_SHARED_BYTES = 256 * 4
_SERIAL_LOCAL = 8  # few rows: small workgroups spread them over cores
# A row this long keeps a workgroup's lanes busy; shorter ones are better off with one invocation each.
_LONG_ROW = 64


def _lanes(device: Device) -> int:
    most = min(device.limit("maxComputeWorkGroupInvocations"), device.limits("maxComputeWorkGroupSize")[0])
    return next((n for n in _LANES if n <= most), 1)


def row_dispatch(
    stem: str,
    dtype: DType,
    inputs: Sequence[str],
    rows: int,
    device: Device,
    *,
    cooperative: bool,
    iterations: int,
    push: Sequence[Word] = (),
    spec: tuple[Word, ...] = (),
) -> Program:
    """One launch with a workgroup (``cooperative``) or an invocation for each of ``rows`` rows; push constants
    start with the number of rows. ``iterations`` is the loop iterations that a whole row takes."""
    if cooperative:
        shader, local = Shader(stem, dtype, _WORKGROUP), _lanes(device)
        groups = linear_groups(rows, 1, device)
    else:
        shader, local = Shader(stem, dtype), _SERIAL_LOCAL if rows < 64 * LOCAL else LOCAL
        groups = linear_groups(rows, local, device)
    return Program(
        (
            Dispatch(
                shader,
                read(*inputs) + write("y"),
                groups=groups,
                local=(local, 1, 1),
                push=(rows, *push),
                spec=spec,
                shared_bytes=_SHARED_BYTES if cooperative else 0,
                loop_iterations=_lane_iterations(iterations, device, cooperative),
            ),
        )
    )


def _lane_iterations(iterations: int, device: Device, cooperative: bool) -> int:
    """Loop iterations of one lane: its share of the row's, and the steps of the shared-memory tree."""
    return ceil_div(iterations, _lanes(device)) + 64 if cooperative else iterations


def row_routes(
    stem: str,
    dtypes: Sequence[DType],
    build: Callable[[Call, Device, bool], Program],
    row_length: Callable[[Call], int],
    iterations: Callable[[Call], int],
    must: Sequence[Need],
) -> tuple[Route, ...]:
    """The routes of an op whose ``build(call, device, cooperative)`` makes either program; ``iterations`` counts
    the loop iterations that a whole row takes."""
    long_rows = Need(
        f"rows of at least {_LONG_ROW} elements",
        lambda call, device: row_length(call) >= _LONG_ROW,
        lambda call, device: str(row_length(call)),
    )
    return (
        Route(
            "workgroup",
            lambda call, device: build(call, device, True),
            tuple(Shader(stem, dtype, _WORKGROUP) for dtype in dtypes),
            "a workgroup per row: dense reads of long rows, partial results meet in shared memory in a fixed tree",
            must=(
                *must,
                shared_bytes(_SHARED_BYTES),
                invocations(_LANES[-1]),
                loop_iterations(lambda call, device: _lane_iterations(iterations(call), device, True)),
            ),
            prefer=(ON_GPU, long_rows),
        ),
        Route(
            "serial",
            lambda call, device: build(call, device, False),
            tuple(Shader(stem, dtype) for dtype in dtypes),
            "an invocation per row: no shared memory and no barriers, right anywhere, best on a CPU driver",
            must=(*must, loop_iterations(lambda call, device: iterations(call))),
        ),
    )
