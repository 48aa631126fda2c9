"""Rows that are reduced to a number: the two routes that reduce, softmax and layer_norm share.

``workgroup`` gives a row to a workgroup, whose lanes meet in shared memory; ``serial`` gives it to one
invocation. On a CPU driver the second is the better one always: its lanes are SIMD lanes, shared memory is slow.
"""

from collections.abc import Callable, Mapping, Sequence

from vkconv.core import DType, ceil_div
from vkconv.device import Device
from vkconv.ops.base import linear_groups, local_sizes, most_invocations
from vkconv.ops.needs import ON_GPU, invocations, loop_iterations, shared_bytes
from vkconv.route import Call, Need, Route
from vkconv.shader import Dispatch, Program, Shader, Word, read, write

_WORKGROUP = (("WORKGROUP", ""),)
# Lanes of a workgroup per row, powers of two, best first; 128 is what every Vulkan device has.
_LANES = (256, 128, 64, 32)
_LEAST_LANES = 128
_SHARED_BYTES = 256 * 4
_SERIAL_LOCALS = (64, 32, 16, 8, 128)
_FEW_ROWS_LOCALS = (8, 16, 32, 64, 128)  # few rows: small workgroups spread them over cores
_FEW_ROWS = 4096
# A row this long keeps a workgroup's lanes busy; shorter ones are better off with one invocation each.
_LONG_ROW = 64


def row_dispatch(
    stem: str,
    dtype: DType,
    inputs: Sequence[str],
    rows: int,
    device: Device,
    *,
    local: int,
    cooperative: bool,
    iterations: int,
    push: Sequence[Word] = (),
    spec: tuple[Word, ...] = (),
) -> Program:
    """One launch with a workgroup of ``local`` lanes (``cooperative``) or an invocation for each of ``rows`` rows;
    push constants start with the number of rows. ``iterations`` is the loop iterations that a whole row takes."""
    return Program(
        (
            Dispatch(
                Shader(stem, dtype, _WORKGROUP if cooperative else ()),
                read(*inputs) + write("y"),
                groups=linear_groups(rows, 1 if cooperative else local, device),
                local=(local, 1, 1),
                push=(rows, *push),
                spec=spec,
                shared_bytes=_SHARED_BYTES if cooperative else 0,
                loop_iterations=_lane_iterations(iterations, local) if cooperative else iterations,
            ),
        )
    )


def _lane_iterations(iterations: int, lanes: int) -> int:
    """Loop iterations of one lane: its share of the row's, and the steps of the shared-memory tree."""
    return ceil_div(iterations, lanes) + 64


def row_routes(
    stem: str,
    dtypes: Sequence[DType],
    build: Callable[[Call, Device, int, bool], Program],
    rows: Callable[[Call], int],
    row_length: Callable[[Call], int],
    iterations: Callable[[Call], int],
    must: Sequence[Need],
) -> tuple[Route, ...]:
    """The routes of an op whose ``build(call, device, local, cooperative)`` makes either program; ``rows`` counts
    rows, ``iterations`` the loop iterations that a whole row takes."""

    def lanes(call: Call, device: Device) -> tuple[int, ...]:
        most = device.max_loop_iterations
        fit = [n for n in _LANES if n <= most_invocations(device)] or [_LEAST_LANES]
        return tuple(n for n in fit if most is None or n == fit[0] or _lane_iterations(iterations(call), n) <= most)

    def locals_(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
        sizes = _FEW_ROWS_LOCALS if rows(call) < _FEW_ROWS else _SERIAL_LOCALS
        return {"local": local_sizes(device, *sizes)}

    long_rows = Need(
        f"rows of at least {_LONG_ROW} elements",
        lambda call, device: row_length(call) >= _LONG_ROW,
        lambda call, device: str(row_length(call)),
    )
    return (
        Route(
            "workgroup",
            lambda call, device, params: build(call, device, params["local"], True),
            tuple(Shader(stem, dtype, _WORKGROUP) for dtype in dtypes),
            "a workgroup per row: dense reads of long rows, partial results meet in shared memory in a fixed tree",
            must=(
                *must,
                shared_bytes(_SHARED_BYTES),
                invocations(_LEAST_LANES),
                loop_iterations(lambda call, device: _lane_iterations(iterations(call), lanes(call, device)[0])),
            ),
            prefer=(ON_GPU, long_rows),
            params=lambda call, device: {"local": lanes(call, device)},
        ),
        Route(
            "serial",
            lambda call, device, params: build(call, device, params["local"], False),
            tuple(Shader(stem, dtype) for dtype in dtypes),
            "an invocation per row: no shared memory and no barriers, right anywhere, best on a CPU driver",
            must=(*must, loop_iterations(lambda call, device: iterations(call))),
            params=locals_,
        ),
    )
