"""The routes of attention: one kernel that keeps scores to itself, by matrices or on lanes, and all steps in turn."""

import dataclasses
from collections.abc import Mapping

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import align, bytes_str, ceil_div
from vkconv.cost import scaled, spills
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core.base import first, holds_workgroup, over_invocations, over_workgroups
from vkconv.ops.core.requirements import FLOATS, INT32, ON_GPU, loop_iterations
from vkconv.ops.core.workgroups import alone_by_default
from vkconv.ops.fused import attention_cooperative, attention_lanes
from vkconv.ops.fused.attention_problem import BINDS_MASK, MASK, AttentionProblem, saved_note
from vkconv.ops.fused.in_turn import UNFUSED
from vkconv.ops.kernels import compiled
from vkconv.ops.kernels.gemm_tile import ENOUGH
from vkconv.ops.matmul.coopmat import COOPERATIVE
from vkconv.ops.matmul.op import MATMUL
from vkconv.ops.norm.softmax import SOFTMAX
from vkconv.policy import Policy
from vkconv.program import Composite, Dispatch, Inner, Program
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route, Sub, choose

_VEC4 = 4
FLASH, MASKING = Shader(shaders.fused.ATTENTION_FLASH), Shader(shaders.fused.ATTENTION_MASK)
# Elements of keys that are staged at a time, and the most floats of values.
_DEEP, _SHALLOW, _MOST_STAGED_VALUES = 16, 8, 1024


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionTile:
    """Queries x keys that a workgroup takes at a time, and queries x keys of an invocation."""

    rows: int
    keys: int
    lane_rows: int
    lane_keys: int

    @property
    def name(self) -> str:
        """``64x64_4x8``"""
        return f"{self.rows}x{self.keys}_{self.lane_rows}x{self.lane_keys}"

    @property
    def columns(self) -> int:
        """Invocations that share a row."""
        return self.keys // self.lane_keys

    @property
    def local(self) -> int:
        return self.rows // self.lane_rows * self.columns

    def constants(self, p: AttentionProblem) -> dict[str, int]:
        """The sizes of the kernel for elements of this size."""
        deep = _DEEP if align(p.head_size, _DEEP) == align(p.head_size, _SHALLOW) else _SHALLOW
        values4, staged = ceil_div(p.value_size, _VEC4), _DEEP
        while staged > 1 and staged * values4 * _VEC4 > _MOST_STAGED_VALUES:
            staged //= 2
        sizes = {"BM": self.rows, "BN": self.keys, "TM": self.lane_rows, "LANES_N": self.columns}
        return {**sizes, "BK": deep, "VK": staged, "HEAD": align(p.head_size, deep), "VALUE4S": values4}

    def shared_bytes(self, p: AttentionProblem) -> int:
        """The queries, the weights, what is staged of keys or values, and a number of each row and invocation."""
        c = self.constants(p)
        stage = max(c["BK"] * (self.keys // _VEC4 + 1), c["VK"] * c["VALUE4S"])
        return 16 * (stage + self.rows // _VEC4 * (c["HEAD"] + self.keys + self.columns))

    def registers(self, p: AttentionProblem) -> int:
        """An estimate of the 32-bit registers of an invocation: scores, results, factors, peaks and sums, addresses."""
        values = _VEC4 * ceil_div(ceil_div(p.value_size, _VEC4), self.columns)
        return self.lane_rows * (self.lane_keys + values + 4) + max(self.lane_keys, values) + 24

    def loop_iterations(self, p: AttentionProblem) -> int:
        """Of an invocation: for each tile of keys those of the two products, of what it stages, and of its peaks."""
        c = self.constants(p)
        steps, parts = c["HEAD"] // c["BK"], self.keys // c["VK"]
        loads = ceil_div(self.keys * c["BK"], self.local) * steps + ceil_div(c["VK"] * c["VALUE4S"], self.local) * parts
        once = ceil_div(self.rows * c["HEAD"], self.local) + self.columns * self.lane_rows
        return once + ceil_div(p.keys, self.keys) * (steps + parts + loads + self.columns * self.lane_rows)


TILES: Mapping[str, AttentionTile] = {
    tile.name: tile
    for tile in (
        AttentionTile(128, 64, 8, 8),
        AttentionTile(64, 64, 8, 8),
        AttentionTile(64, 64, 4, 8),
        AttentionTile(64, 32, 4, 8),
        AttentionTile(32, 64, 4, 4),
        AttentionTile(32, 32, 4, 4),
        AttentionTile(16, 64, 4, 4),
        AttentionTile(16, 32, 4, 4),
        AttentionTile(8, 32, 4, 4),
    )
}
# By the device, the first of these that fits and makes enough workgroups is the default, else the last that fits; where
# none of them does, the first of the others.
_RULE = Policy("fused.attention_tiles", tuple[str, ...])
_SMALL = ("32x32_4x4", "16x32_4x4", "8x32_4x4")


def _fitting(call: Call, device: Device) -> dict[str, AttentionTile]:
    p = AttentionProblem.of(call)
    return {n: tile for n, tile in TILES.items() if holds_workgroup(device, tile.local, tile.shared_bytes(p))}


def _blocks(p: AttentionProblem, tile: AttentionTile) -> int:
    return p.batches * ceil_div(p.queries, tile.rows)


def _known(tile: AttentionTile, call: Call, device: Device) -> bool | None:
    """Whether the GPU's compiler kept a tile in registers; None where that is not known. A tile that is not in its
    table spills where one with no more queries and keys to an invocation does."""
    p, form = AttentionProblem.of(call), MASK[0] if call.has("mask") else ""

    def fits(one: AttentionTile) -> bool | None:
        return compiled.fits(FLASH.kernel, one.constants(p), compiled.element_of(call), device, form)

    smaller = (t for t in TILES.values() if t.lane_rows <= tile.lane_rows and t.lane_keys <= tile.lane_keys)
    known = fits(tile)
    return False if known is None and any(fits(one) is False for one in smaller) else known


def _staying(call: Call, device: Device) -> tuple[dict[str, AttentionTile], bool]:
    """The tiles that fit and stay in registers, by the GPU's compiler or else by estimate; where there are none, those
    that the compiler is not known to spill; else all that fit. And whether all of them are known to spill."""
    p, fitting = AttentionProblem.of(call), _fitting(call, device)
    known = {name: _known(tile, call, device) for name, tile in fitting.items()}
    maybe = {name: tile for name, tile in fitting.items() if known[name] is not False}
    kept = {name: tile for name, tile in maybe.items() if known[name] or not spills(tile.registers(p), device)}
    return kept or maybe or fitting, bool(fitting) and not maybe


def _flash_params(call: Call, device: Device) -> Legal:
    p, fitting = AttentionProblem.of(call), _fitting(call, device)
    kept, _ = _staying(call, device)
    rule = [name for name in _RULE.of(device) if name in kept]
    if not rule:
        return {"tile": first(next((name for name in _SMALL if name in kept), next(iter(kept))), fitting)}
    # A tile of twice as many rows as there are queries computes what is not stored.
    close = [name for name in rule if fitting[name].rows < 2 * p.queries] or rule[-1:]
    enough = scaled(ENOUGH.of(device).products, device)
    best = next((name for name in close if _blocks(p, fitting[name]) >= enough), close[-1])
    return {"tile": first(best, fitting)}


def _flash(call: Call, device: Device, params: Params) -> Program:
    p, tile = AttentionProblem.of(call), TILES[params["tile"]]
    shader = FLASH.having(MASK) if call.has("mask") else FLASH
    vectors = {"Q_VEC4": p.head_size, "K_VEC4": p.keys if call["trans_k"] else p.head_size, "V_VEC4": p.value_size}
    push = {**p.push, "scale": float(call["scale"])}
    flags = {"K_BY_COL": "trans_k", "CAUSAL": "causal", "ZERO_ROWS": "zero_rows"}
    step = Dispatch(
        shader,
        shader.taking({name: name for name in ("q", "k", "v", "mask", "y")}),
        *over_workgroups(_blocks(p, tile), tile.local, device),
        shader.taking(push),
        {
            **tile.constants(p),
            **{name: extent % _VEC4 == 0 for name, extent in vectors.items()},
            **{name: bool(call[attr]) for name, attr in flags.items()},
        },
        tile.shared_bytes(p),
        tile.loop_iterations(p),
    )
    return Program((step,))


def _products(call: Call) -> tuple[Call, Call, Call]:
    """The scores without mask, their softmax, and the weighted values as calls of their own."""
    p, dtype = AttentionProblem.of(call), call.outputs["y"].dtype
    lead = (p.images, p.heads // p.heads_of_keys, p.heads_of_keys) if p.heads_of_keys > 1 else (p.batches,)
    of_keys = (*lead[:-1], 1) if p.heads_of_keys > 1 else lead
    k = (p.head_size, p.keys) if call["trans_k"] else (p.keys, p.head_size)
    q, k_spec = TensorSpec((*lead, p.queries, p.head_size), dtype), TensorSpec((*of_keys, *k), dtype)
    v = TensorSpec((*of_keys, p.keys, p.value_size), dtype)
    scores = TensorSpec((*lead, p.queries, p.keys), dtype)
    return (
        MATMUL.call({"a": q, "b": k_spec}, {"trans_b": not call["trans_k"], "alpha": call["scale"]}),
        SOFTMAX.call({"x": scores}, {"axis": -1, "zero_rows": call["zero_rows"]}),
        MATMUL.call({"a": scores, "b": v}),
    )


_MATMULS = tuple(route for route in MATMUL.routes if route.rounds_as_f32)
_STEPS = ("scores", "softmax", "values")


def _inner(call: Call, device: Device, params: Params) -> Mapping[str, Sub]:
    routes = (_MATMULS, SOFTMAX.routes, _MATMULS)
    return {name: Sub(sub, of) for name, sub, of in zip(_STEPS, _products(call), routes, strict=True)}


def _masking(call: Call, device: Device) -> Dispatch:
    """The launch that masks scores in place."""
    p = AttentionProblem.of(call)
    shader = MASKING.having(MASK) if call.has("mask") else MASKING
    total = p.batches * p.queries * p.keys
    push = {"total": total, "keys": p.keys, "queries": p.queries, "heads": p.heads, **p.of_mask}
    buffers = {"scores": "scores", "mask": "mask"}
    grid = over_invocations(total, alone_by_default(device), device)
    return Dispatch(shader, shader.taking(buffers), *grid, shader.taking(push), {"CAUSAL": bool(call["causal"])})


def _scores_bytes(call: Call) -> int:
    """Of the scores in f32."""
    p = AttentionProblem.of(call)
    return 4 * p.batches * p.queries * p.keys


def _in_turn(call: Call, device: Device, params: Params) -> Composite:
    masking = (_masking(call, device),) if call.has("mask") or call["causal"] else ()
    steps = (
        Inner("scores", {"a": "q", "b": "k", "y": "scores"}),
        *masking,
        Inner("softmax", {"x": "scores", "y": "weights"}),
        Inner("values", {"a": "weights", "b": "v"}),
    )
    scratch = {"scores": _scores_bytes(call), "weights": _scores_bytes(call)}
    return Composite(steps, scratch=scratch, elements=frozenset(scratch))


def _fits(call: Call, device: Device) -> bool:
    return bool(_fitting(call, device))


_TILE_FITS = Requirement(
    "a tile of queries and one of keys that a workgroup can hold",
    _fits,
    lambda call, device: f"heads of {AttentionProblem.of(call).head_size}",
)
_LEAST_QUERIES = Policy("fused.attention_queries", int)
_MANY_QUERIES = Requirement(
    "as many queries as leave no tile mostly empty",
    lambda call, device: AttentionProblem.of(call).queries >= _LEAST_QUERIES.of(device),
    lambda call, device: f"{AttentionProblem.of(call).queries}, {_LEAST_QUERIES.of(device)} are enough",
)


_STAYS = Requirement(
    "a tile that stays in registers, as far as the GPU's compiler is known",
    lambda call, device: not _staying(call, device)[1],
    lambda call, device: f"heads of {AttentionProblem.of(call).head_size} spill there",
)
_ON_LANES = Requirement(
    "products that no matrix units would take",
    lambda call, device: _takes_scores(call, device) != COOPERATIVE.name,
    lambda call, device: f"matmul would take {_takes_scores(call, device)}",
)


def _takes_scores(call: Call, device: Device) -> str:
    """The route by which matmul would make the scores."""
    return choose(_MATMULS, _products(call)[0], device).route.name


def _flash_loops(call: Call, device: Device) -> int:
    fitting = _fitting(call, device).values()
    return max((tile.loop_iterations(AttentionProblem.of(call)) for tile in fitting), default=0)


ROUTES: tuple[Route, ...] = (
    attention_cooperative.COOPERATIVE,
    Route(
        "flash_lanes",
        attention_lanes.build,
        attention_lanes.SHADERS,
        why="one launch whose scores and results stay in registers: lanes that own queries share keys and values of a "
        "tile, and meet by shuffles, where those of flash meet in shared memory",
        must=(FLOATS, INT32, BINDS_MASK, attention_lanes.FITS, loop_iterations(attention_lanes.loops)),
        prefer=(ON_GPU, attention_lanes.TAKEN, _MANY_QUERIES, _ON_LANES, attention_lanes.HOLDS),
        source="Dao et al., FlashAttention, 2022; Milakov and Gimelshein, Online normalizer calculation, 2018",
        params=attention_lanes.params,
        note=saved_note,
    ),
    Route(
        "flash",
        _flash,
        (FLASH, FLASH.having(MASK)),
        why="one launch that goes over the keys in tiles with a running maximum and sum of each query: scores stay in "
        "registers and shared memory, where in turn they are written and read twice",
        must=(FLOATS, INT32, BINDS_MASK, _TILE_FITS, loop_iterations(_flash_loops)),
        prefer=(ON_GPU, _MANY_QUERIES, _ON_LANES, _STAYS),
        source="Dao et al., FlashAttention, 2022; Milakov and Gimelshein, Online normalizer calculation, 2018",
        params=_flash_params,
        note=saved_note,
    ),
    Route(
        UNFUSED,
        _in_turn,
        tuple(
            dict.fromkeys(
                (MASKING, MASKING.having(MASK), *(s for r in (*_MATMULS, *SOFTMAX.routes) for s in r.shaders))
            )
        ),
        why="the scores into scratch, masked and normalized there, then their product with the values, each by its own "
        "best route: what fusing must beat",
        must=(FLOATS,),
        inner=_inner,
        note=lambda call, device, params: f"{bytes_str(2 * _scores_bytes(call))} of scratch, in f32, between the steps",
    ),
)
