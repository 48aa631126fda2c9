"""The route of attention by cooperative matrices, of 16-bit floats: one kernel that keeps scores to itself."""

import dataclasses
from collections.abc import Mapping

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, align, ceil_div
from vkconv.cost import scaled, spills
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.base import first, holds_workgroup, over_workgroups
from vkconv.ops.core.requirements import INT32, ON_GPU, SHUFFLE, loop_iterations
from vkconv.ops.fused.attention_problem import BINDS_MASK, MASK, AttentionProblem, saved_note
from vkconv.ops.kernels.coopmat import EIGHT, HALF, MATRICES, matrix_of
from vkconv.ops.kernels.gemm_tile import ENOUGH
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program, Word
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route

FLASH = Shader(shaders.fused.ATTENTION_COOPERATIVE, DType.F16)
# Lanes that share a row of scores: they read runs of a mask, and few meet.
_ROW_LANES = 8
# The largest heads whose queries and results a subgroup may hold as matrices.
_MOST_HEAD = 256


@dataclasses.dataclass(frozen=True, slots=True)
class MatrixTile:
    """Queries x keys that a workgroup takes at a time, and queries of a subgroup."""

    rows: int
    keys: int
    subgroup_rows: int

    @property
    def name(self) -> str:
        """``64x64_16``"""
        return f"{self.rows}x{self.keys}_{self.subgroup_rows}"

    def local(self, device: Device) -> int:
        """Invocations of a workgroup."""
        return self.rows // self.subgroup_rows * device.subgroup_size

    def fits(self, p: AttentionProblem, device: Device) -> bool:
        """Whether it is made of whole matrices, rows of its subgroups of whole turns, and a workgroup can hold it."""
        matrix = matrix_of(device)
        if matrix is None or device.subgroup_size % _ROW_LANES:
            return False
        parts = self.subgroup_rows % matrix.m, self.keys % matrix.n, self.keys % matrix.k
        turns = self.subgroup_rows * _ROW_LANES % device.subgroup_size
        nbytes = max(self.shared_bytes(p, device, by_column) for by_column in (False, True))
        return not (any(parts) or turns) and holds_workgroup(device, self.local(device), nbytes)

    def constants(self, p: AttentionProblem, device: Device) -> dict[str, Word]:
        """The sizes of the kernel for elements of this size."""
        matrix = matrix_of(device)
        assert matrix is not None
        return {
            **{"BM": self.rows, "BN": self.keys, "SM": self.subgroup_rows},
            **{"MM": matrix.m, "MN": matrix.n, "MK": matrix.k, "SUBGROUP": device.subgroup_size},
            **{"HEAD": align(p.head_size, matrix.k), "VALUES": align(p.value_size, matrix.n), "ROW_LANES": _ROW_LANES},
        }

    def shared_bytes(self, p: AttentionProblem, device: Device, by_column: bool) -> int:
        """The scores in f32, keys in lines, or with ``by_column`` side by side, values, and a factor of each row; lines
        padded."""
        c = self.constants(p, device)
        head, values = int(c["HEAD"]), int(c["VALUES"])
        keys = 2 * (head * (self.keys + EIGHT) if by_column else self.keys * (head + EIGHT))
        return self.rows * (4 * self.keys + 16 + 4) + keys + 2 * self.keys * (values + EIGHT)

    def registers(self, p: AttentionProblem, device: Device) -> int:
        """An estimate of the 32-bit registers of an invocation: results, queries, scores, mask, factors, addresses."""
        c = self.constants(p, device)
        of_row = int(c["VALUES"]) + int(c["HEAD"]) // 2 + self.keys + self.keys // 2
        return ceil_div(self.subgroup_rows * of_row, device.subgroup_size) + 40

    def loop_iterations(self, p: AttentionProblem) -> int:
        """Of an invocation; all loops but that over the keys and the last are unrolled."""
        return ceil_div(p.keys, self.keys) + self.subgroup_rows * p.value_size


# The parameter ``tile``.
TILES: Mapping[str, MatrixTile] = {
    tile.name: tile
    for tile in (
        MatrixTile(128, 64, 32),
        MatrixTile(128, 64, 16),
        MatrixTile(64, 64, 16),
        MatrixTile(64, 64, 32),
        MatrixTile(64, 32, 16),
        MatrixTile(32, 64, 16),
        MatrixTile(32, 32, 16),
        MatrixTile(16, 64, 16),
        MatrixTile(16, 32, 16),
        MatrixTile(16, 32, 8),  # of devices whose matrices have 8 rows
    )
}
# By the device, the first of these that fits and makes enough workgroups is the default, else the last that fits.
_RULE = Policy("fused.attention_matrix_tiles", tuple[str, ...])


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """Whether one launch is taken, and of how many queries, keys and elements of a head at least."""

    taken: bool
    queries: int
    keys: int
    head: int


_TAKEN = Policy("fused.attention_matrices", Taken)


def _fitting(call: Call, device: Device) -> dict[str, MatrixTile]:
    p = AttentionProblem.of(call)
    return {name: tile for name, tile in TILES.items() if tile.fits(p, device)}


def _kept(call: Call, device: Device) -> dict[str, MatrixTile]:
    """The tiles that spill nothing, as far as is known."""
    p = AttentionProblem.of(call)
    return {n: tile for n, tile in _fitting(call, device).items() if not spills(tile.registers(p, device), device)}


def _blocks(p: AttentionProblem, tile: MatrixTile) -> int:
    return p.batches * ceil_div(p.queries, tile.rows)


def _params(call: Call, device: Device) -> Legal:
    p, fitting = AttentionProblem.of(call), _fitting(call, device)
    kept = _kept(call, device) or fitting
    rule = [name for name in _RULE.of(device) if name in kept] or list(kept)
    # A tile of twice as many rows as there are queries, or keys, computes what is not stored.
    close = [n for n in rule if kept[n].rows < 2 * p.queries and kept[n].keys < 2 * p.keys] or rule[-1:]
    enough = scaled(ENOUGH.of(device).products, device)
    best = next((name for name in close if _blocks(p, kept[name]) >= enough), close[-1])
    return {"tile": first(best, fitting)}


def _build(call: Call, device: Device, params: Params) -> Program:
    p, tile = AttentionProblem.of(call), TILES[params["tile"]]
    shader = FLASH.having(MASK) if call.has("mask") else FLASH
    vectors = {"Q_WIDE": p.head_size, "K_WIDE": p.keys if call["trans_k"] else p.head_size, "V_WIDE": p.value_size}
    step = Dispatch(
        shader,
        shader.taking({name: name for name in ("q", "k", "v", "mask", "y")}),
        *over_workgroups(_blocks(p, tile), tile.local(device), device),
        shader.taking({**p.push, "scale": float(call["scale"])}),
        {
            **tile.constants(p, device),
            **{name: extent % EIGHT == 0 for name, extent in vectors.items()},
            "K_BY_COL": int(bool(call["trans_k"])),
            "CAUSAL": bool(call["causal"]),
            "ZERO_ROWS": bool(call["zero_rows"]),
        },
        tile.shared_bytes(p, device, bool(call["trans_k"])),
        tile.loop_iterations(p),
    )
    return Program((step,))


_FITS = Requirement(
    f"heads of at most {_MOST_HEAD} elements, and a workgroup that holds a tile of whole matrices for them",
    lambda call, device: (
        max(AttentionProblem.of(call).head_size, AttentionProblem.of(call).value_size) <= _MOST_HEAD
        and bool(_fitting(call, device))
    ),
    lambda call, device: (
        f"heads of {AttentionProblem.of(call).head_size}, values of {AttentionProblem.of(call).value_size}"
    ),
)
_HOLDS = Requirement(
    "queries and results that the registers of a subgroup hold",
    lambda call, device: bool(_kept(call, device)),
    lambda call, device: f"heads of {AttentionProblem.of(call).head_size}",
)


def _fills(call: Call, device: Device) -> bool:
    p, least = AttentionProblem.of(call), _TAKEN.of(device)
    enough = p.queries >= least.queries and p.keys >= least.keys and min(p.head_size, p.value_size) >= least.head
    return least.taken and enough


def _filled(call: Call, device: Device) -> str:
    p, least = AttentionProblem.of(call), _TAKEN.of(device)
    if not least.taken:
        return "not on this device"
    return f"{p.queries} queries, {p.keys} keys, heads of {p.head_size}; {least.queries}, {least.keys}, {least.head} do"


_FILLS = Requirement("a device of the policy, and as many queries, keys and elements as fill matrices", _fills, _filled)


def _loops(call: Call, device: Device) -> int:
    fitting = _fitting(call, device).values()
    return max((tile.loop_iterations(AttentionProblem.of(call)) for tile in fitting), default=0)


COOPERATIVE = Route(
    "flash_cooperative",
    _build,
    (FLASH, FLASH.having(MASK)),
    why="one launch whose two products are of matrix units: scores go from them to shared memory, where lanes weigh "
    "them with a running maximum and sum of each query, and back",
    must=(HALF, MATRICES, INT32, SHUFFLE, BINDS_MASK, _FITS, loop_iterations(_loops)),
    prefer=(ON_GPU, _FILLS, _HOLDS),
    source="Dao, FlashAttention-2, 2023",
    params=_params,
    note=saved_note,
)
