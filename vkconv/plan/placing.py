"""Where the constants of a plan lie: on the device, and in the buffer that loads them."""

from collections.abc import Callable, Mapping, Sequence

from vkconv.core import align
from vkconv.graph.ir import TensorSpec
from vkconv.plan.bound import BoundGraph, BoundNode
from vkconv.plan.commands import Region
from vkconv.plan.memory import Block
from vkconv.plan.regions import Placed, PlacedWeights, words
from vkconv.plan.textures import PlacedTextures, without
from vkconv.plan.weights import (
    Resident,
    WeightKey,
    WeightKeys,
    constants_of,
    dispatched_at_run,
    kept_blocks,
    prepacks_at_load,
)
from vkconv.program import Program
from vkconv.texture import PlannedTexture

_Steps = Sequence[tuple[BoundNode, Program]]


def place_weights(
    bound: BoundGraph,
    steps: _Steps,
    resident: Resident | None,
    textures: Mapping[str, PlannedTexture],
    alignment: int,
    layout: Callable[[str, Sequence[Block], int], Placed],
) -> PlacedWeights:
    """Where constants stay: those that are resident where they are, the others once each in new chunks of ``layout``.
    None is resident, and none is looked for by its content, where nobody shares them (None)."""
    known = resident or {}
    pieces = bound.pieces.of if bound.pieces else ()
    keys = WeightKeys(bound.constants, by_content=resident is not None, alike=pieces)
    kept = list(kept_blocks(steps, bound.constants, keys))
    fresh: dict[WeightKey, Block] = {}
    for name, key, nbytes in kept:
        if key not in known:
            fresh.setdefault(key, Block(name, words(nbytes), 0, 0))
    first = len({region.buffer for region in known.values()})
    images = PlacedTextures("packed texture", list(fresh.values()), textures, first)
    placed = layout("weights", without(fresh.values(), textures), first)
    made = {**placed.regions, **images.regions}
    at = {**known, **{key: made[block.name] for key, block in fresh.items()}}
    return PlacedWeights(
        regions={name: at[key] for name, key, _ in kept},
        placed={key: at[key] for key in fresh},
        fresh={block.name for block in fresh.values()},
        buffers=placed.buffers,
        textures=images.textures,
        nbytes=placed.layout.peak_bytes
        + images.nbytes
        + sum(align(at[key].nbytes, alignment) for key in {k for _, k, _ in kept} - fresh.keys()),
    )


def packs_anew(node: BoundNode, program: Program, weights: PlacedWeights) -> bool:
    """True where prepacking the node at load makes something that is not on the device yet."""
    return any(f"packed:{node.name}:{buffer}" in weights.fresh for buffer in program.packed)


def staged_constants(bound: BoundGraph, steps: _Steps, weights: PlacedWeights) -> dict[str, TensorSpec]:
    """Constants that loading reads: the host writes them once, into the load buffer."""
    constants = bound.constants
    staged: dict[str, TensorSpec] = {}
    for node, program in steps:
        kept = constants_of(node, dispatched_at_run(node, program, constants), constants)
        raw = [value for value in kept if f"weight:{value}" in weights.fresh]
        packs = prepacks_at_load(node, program, constants) and packs_anew(node, program, weights)
        read = constants_of(node, program.prepack, constants) if packs else []
        staged |= {value: bound.specs[value] for value in (*raw, *read)}
    return staged


def staged_regions(buffer: str, specs: Mapping[str, TensorSpec], alignment: int) -> dict[str, Region]:
    """Regions of a buffer one after the other, for these tensors."""
    regions: dict[str, Region] = {}
    offset = 0
    for name, spec in specs.items():
        regions[name] = Region(buffer, offset, words(spec.nbytes))
        offset = align(offset + words(spec.nbytes), alignment)
    return regions
