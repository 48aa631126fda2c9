"""Inputs and outputs of which the host makes the last or the first cast while it copies them, so that half the bytes
move: f32 that goes into a cast to 16 bits at first, and f32 that such a value is cast to at the end."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

from vkconv.core import DType
from vkconv.graph.ir import TensorSpec
from vkconv.plan.arriving import Arrived
from vkconv.plan.bound import BoundGraph, BoundNode
from vkconv.plan.commands import Barrier, Command, Copy, Launch, Region, with_barriers

_NARROW = (DType.F16, DType.BF16)


@dataclasses.dataclass(frozen=True)
class Narrowed:
    """An input that arrives in 16 bits: ``spec`` says how, ``port`` where. ``upload`` takes it from staging to where
    kernels read it, None where that is the port. Of an array of the device, which has 32 bits, ``cast`` makes the same.
    """

    spec: TensorSpec
    port: Region
    upload: Copy | None
    cast: tuple[Launch, ...]


@dataclasses.dataclass(frozen=True)
class Widened:
    """An output that leaves in 16 bits: ``spec`` says how, ``port`` where. ``download`` takes it there from where
    kernels make it, None where that is the port. In an array of the device, which has 32 bits, ``cast`` makes it."""

    spec: TensorSpec
    port: Region
    download: Copy | None
    cast: tuple[Launch, ...]


def cast_inputs(bound: BoundGraph, nodes: Iterable[BoundNode], kept: Collection[str]) -> dict[str, BoundNode]:
    """By input, the node of these that casts it to 16 bits, where nothing else reads it; not of those in ``kept``, nor
    where the graph gives out either."""
    users = bound.users()
    found = {}
    for node in nodes:
        if node.call.op != "cast":
            continue
        x, y = node.reads["x"], node.writes["y"]
        fits = bound.specs[x].dtype is DType.F32 and bound.specs[y].dtype in _NARROW and bound.specs[x].size > 0
        alone = len(users.get(x, ())) == 1 and not {x, y} & {*bound.outputs, *kept}
        if x in bound.inputs and fits and alone:
            found[x] = node
    return found


def cast_outputs(bound: BoundGraph, nodes: Iterable[BoundNode], kept: Collection[str]) -> dict[str, BoundNode]:
    """By output, the node of these that makes it of 16 bits, where nothing else reads it, and the graph gives it out
    once; not of or into those in ``kept``."""
    users = bound.users()
    found = {}
    for node in nodes:
        if node.call.op != "cast":
            continue
        x, y = node.reads["x"], node.writes["y"]
        fits = bound.specs[x].dtype in _NARROW and bound.specs[y].dtype is DType.F32 and bound.specs[y].size > 0
        alone = not users.get(y) and bound.outputs.count(y) == 1 and not {x, y} & {*kept}
        if fits and alone:
            found[y] = node
    return found


def ahead(
    narrowed: Mapping[str, Narrowed], there: Collection[str], run: Sequence[Command | Barrier | Arrived]
) -> tuple[Command | Barrier | Arrived, ...]:
    """The commands of a run behind those that bring its narrowed inputs; ``there`` are the inputs that are arrays of
    the device."""
    first: list[Command] = []
    for name, how in narrowed.items():
        if name in there:
            first += how.cast
        elif how.upload:
            first.append(how.upload)
    if not first:
        return tuple(run)
    after = next((command.node for command in run if not isinstance(command, Barrier)), "")
    last = first[-1]
    return (*with_barriers(first), Barrier("RAW", _written(last), last.node, after), *run)


def behind(
    widened: Mapping[str, Widened], run: Sequence[Command | Barrier | Arrived]
) -> tuple[Command | Barrier | Arrived, ...]:
    """The commands of a run whose outputs stay on the device, in 32 bits."""
    if not widened:
        return tuple(run)
    casts = [launch for how in widened.values() for launch in how.cast]
    downloads = [how.download for how in widened.values()]
    left = [command for command in run if command not in downloads]
    last = next((c for c in reversed(left) if isinstance(c, Launch | Copy)), None)
    before = () if last is None else (Barrier("RAW", _written(last), last.node, casts[0].node),)
    return (*left, *before, *with_barriers(casts))


def _written(command: Command) -> Region:
    return next(region for region, access in command.accesses if access != "r")
