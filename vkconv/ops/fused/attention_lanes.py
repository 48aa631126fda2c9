"""Attention in one launch whose scores never leave registers: clusters of lanes own queries and meet by shuffles."""

import dataclasses
from collections.abc import Mapping

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import align, ceil_div
from vkconv.cost import scaled, spills
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.base import first, holds_workgroup, over_workgroups
from vkconv.ops.core.requirements import shuffles
from vkconv.ops.fused.attention_problem import MASK, AttentionProblem
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program, Word
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params

_VEC4 = 4
# Keys whose scores a lane has at a time, as the kernel has it.
_CHUNK = 8
# Registers of addresses, extents and what is under way in the arithmetic.
_OTHER_REGISTERS = 32
FLASH = Shader(shaders.fused.ATTENTION_FLASH_LANES)
CLUSTERS = ("CLUSTERS", "")
SHADERS = (FLASH, FLASH.having(MASK), FLASH.having(CLUSTERS), FLASH.having(CLUSTERS, MASK))


@dataclasses.dataclass(frozen=True, slots=True)
class LanesTile:
    """Queries x keys that a workgroup takes at a time, and queries x lanes of a cluster."""

    rows: int
    keys: int
    cluster_rows: int
    lanes: int

    @property
    def name(self) -> str:
        """``64x32_4x4``"""
        return f"{self.rows}x{self.keys}_{self.cluster_rows}x{self.lanes}"

    @property
    def local(self) -> int:
        return self.rows // self.cluster_rows * self.lanes

    def _line(self, elements: int) -> int:
        """The vec4 of a query or a value, whole for all lanes of a cluster."""
        return align(ceil_div(elements, _VEC4), self.lanes)

    def useful(self, p: AttentionProblem) -> float:
        """The share of elements that are no padding."""
        whole = self._line(p.head_size) + self._line(p.value_size)
        return (ceil_div(p.head_size, _VEC4) + ceil_div(p.value_size, _VEC4)) / whole

    def constants(self, p: AttentionProblem) -> dict[str, Word]:
        """The sizes of the kernel for elements of this size."""
        sizes = {"BM": self.rows, "BN": self.keys, "ROWS": self.cluster_rows, "LANES": self.lanes}
        return {**sizes, "HEAD4S": ceil_div(p.head_size, _VEC4), "VALUE4S": ceil_div(p.value_size, _VEC4)}

    def shared_bytes(self, p: AttentionProblem, masked: bool) -> int:
        """Keys and values of a tile, and the mask in f32, in lines of one more."""
        of_mask = 4 * self.rows * (self.keys + 1) if masked else 0
        return 16 * self.keys * (self._line(p.head_size) + self._line(p.value_size)) + of_mask

    def registers(self, p: AttentionProblem, masked: bool, ahead: bool) -> int:
        """An estimate of the 32-bit registers of an invocation: queries and results; scores; what it loads of a tile,
        beside them where that is ahead, else before them."""
        head, value = self._line(p.head_size), self._line(p.value_size)
        held = _VEC4 * self.cluster_rows * (head + value) // self.lanes
        scores = self.cluster_rows * (_CHUNK + 2) + 2 * _VEC4
        loads = _VEC4 * (ceil_div(self.keys * head, self.local) + ceil_div(self.keys * value, self.local))
        loads += self.rows * self.keys // self.local if masked else 0
        return held + (scores + loads if ahead else max(scores, loads)) + _OTHER_REGISTERS

    def fits(self, call: Call, device: Device) -> bool:
        """Whether a workgroup can hold it, of whole subgroups whose lanes can shuffle where they meet."""
        if not holds_workgroup(device, self.local, self.shared_bytes(AttentionProblem.of(call), call.has("mask"))):
            return False
        subgroup = device.subgroup_size
        return self.lanes == 1 or (shuffles(device) and not (subgroup % self.lanes or self.local % subgroup))

    def loop_iterations(self, p: AttentionProblem) -> int:
        """Of an invocation: tiles, and chunks of each."""
        return ceil_div(p.keys, self.keys) * (1 + self.keys // _CHUNK)


# The parameter ``tile``. Invocations of a workgroup are a multiple of its keys.
TILES: Mapping[str, LanesTile] = {
    tile.name: tile
    for tile in (
        LanesTile(128, 32, 4, 4),
        LanesTile(64, 64, 4, 4),
        LanesTile(64, 32, 4, 4),
        LanesTile(64, 16, 4, 4),
        LanesTile(32, 32, 4, 4),
        LanesTile(32, 32, 4, 8),
        LanesTile(32, 32, 2, 4),
        LanesTile(32, 16, 2, 4),
        LanesTile(16, 64, 1, 4),
        LanesTile(16, 32, 1, 4),
        LanesTile(8, 16, 1, 8),
        LanesTile(64, 32, 2, 2),
        LanesTile(64, 32, 1, 1),
        LanesTile(32, 16, 1, 1),
    )
}
# By the device, the first of these that fits and makes enough workgroups is the default, else that with the most.
_RULE = Policy("fused.attention_lanes_tiles", tuple[str, ...])


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """Whether the route is taken, workgroups of a compute unit that keep it busy, and the share of elements that are no
    padding, at the least by rule."""

    taken: bool
    workgroups: float
    useful: float


_TAKEN = Policy("fused.attention_lanes", Taken)


def _fitting(call: Call, device: Device) -> dict[str, LanesTile]:
    return {name: tile for name, tile in TILES.items() if tile.fits(call, device)}


def _kept(call: Call, device: Device, ahead: bool = False) -> dict[str, LanesTile]:
    """The tiles that spill nothing, by the estimate."""
    p, masked = AttentionProblem.of(call), call.has("mask")
    fitting = _fitting(call, device).items()
    return {name: tile for name, tile in fitting if not spills(tile.registers(p, masked, ahead), device)}


def _blocks(p: AttentionProblem, tile: LanesTile) -> int:
    return p.batches * ceil_div(p.queries, tile.rows)


def params(call: Call, device: Device) -> Legal:
    """The tile, and whether its loads are ahead: by default where too few workgroups would hide them."""
    p, fitting = AttentionProblem.of(call), _fitting(call, device)
    kept = _kept(call, device) or fitting
    rule = [name for name in _RULE.of(device) if name in kept] or list(kept)
    # A tile of twice as many rows as there are queries computes what is not stored.
    close = [name for name in rule if kept[name].rows < 2 * p.queries] or rule[-1:]
    close = [name for name in close if kept[name].useful(p) >= _TAKEN.of(device).useful] or close
    enough = scaled(_TAKEN.of(device).workgroups, device)
    blocks = {name: _blocks(p, kept[name]) for name in close}
    best = next((name for name in close if blocks[name] >= enough), max(close, key=blocks.__getitem__))
    waits = p.keys > TILES[best].keys and _blocks(p, TILES[best]) < enough
    ahead = (1, 0) if waits and best in _kept(call, device, ahead=True) else (0, 1)
    return {"tile": first(best, fitting), "ahead": ahead}


def build(call: Call, device: Device, params: Params) -> Program:
    """One launch."""
    p, tile = AttentionProblem.of(call), TILES[params["tile"]]
    shader = FLASH.having(CLUSTERS) if tile.lanes > 1 else FLASH
    shader = shader.having(MASK) if call.has("mask") else shader
    whole = {"Q_VEC4": p.head_size, "V_VEC4": p.value_size}
    step = Dispatch(
        shader,
        shader.taking({name: name for name in ("q", "k", "v", "mask", "y")}),
        *over_workgroups(_blocks(p, tile), tile.local, device),
        shader.taking({**p.push, "scale": float(call["scale"])}),
        {
            **tile.constants(p),
            "AHEAD": bool(params["ahead"]),
            **{name: extent % _VEC4 == 0 for name, extent in whole.items()},
            "K_VEC4": p.head_size % _VEC4 == 0 and not call["trans_k"],
            "K_BY_COL": bool(call["trans_k"]),
            "CAUSAL": bool(call["causal"]),
            "ZERO_ROWS": bool(call["zero_rows"]),
        },
        tile.shared_bytes(p, call.has("mask")),
        tile.loop_iterations(p),
    )
    return Program((step,))


def loops(call: Call, device: Device) -> int:
    """Loop iterations of an invocation at most."""
    p = AttentionProblem.of(call)
    return max((tile.loop_iterations(p) for tile in _fitting(call, device).values()), default=0)


def _sizes(call: Call, device: Device) -> str:
    p = AttentionProblem.of(call)
    return f"heads of {p.head_size}, values of {p.value_size}"


FITS = Requirement(
    "a tile of keys and values that a workgroup can hold",
    lambda call, device: bool(_fitting(call, device)),
    _sizes,
)
HOLDS = Requirement(
    "queries and results that registers hold, by a tile of the policy",
    lambda call, device: not _kept(call, device).keys().isdisjoint(_RULE.of(device)),
    _sizes,
)
TAKEN = Requirement(
    "a device of the policy",
    lambda call, device: _TAKEN.of(device).taken,
    lambda call, device: "not on this device",
)
