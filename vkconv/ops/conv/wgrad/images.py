"""A sum over more images than a binding holds, as launches over some of them: each binds its part of x and dy."""

import dataclasses
import math
from collections.abc import Iterator

from vkconv.call import Call
from vkconv.core import bytes_str, ceil_div
from vkconv.device import Device
from vkconv.ops.conv.wgrad.kernels import Output, SplitK, Tile, evenly, launch
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.core.bindings import images_at_a_time, most_bound
from vkconv.program import Dispatch, Range
from vkconv.route import Requirement


def _image_bytes(p: WeightGradient) -> tuple[int, int]:
    """Of x and dy, in f32: so programs see calls of 16-bit floats too."""
    return 4 * p.c_in * math.prod(p.extent), 4 * p.c_out * math.prod(p.out)


def at_a_time(p: WeightGradient, device: Device) -> int:
    """Images that a launch sums over: all, where no fewer would help."""
    return images_at_a_time(p.n, _image_bytes(p), device, halved=True) or p.n


def parts(p: WeightGradient, device: Device) -> int:
    """Launches that sum over all images."""
    return ceil_div(p.n, at_a_time(p, device)) if p.n else 1


def _sums(p: WeightGradient, split: SplitK, device: Device) -> Iterator[tuple[int, WeightGradient, SplitK]]:
    """The first image of each launch, its part of the gradient and the slices of that."""
    step = at_a_time(p, device)
    for first in range(0, p.n, step):
        some = dataclasses.replace(p, n=min(step, p.n - first))
        yield first, some, _of_some(p, split, some)


def _of_some(p: WeightGradient, split: SplitK, some: WeightGradient) -> SplitK:
    if split.boxes(p) == 1:
        return evenly(some, max(1, ceil_div(split.per_box * some.n, p.n)))
    return dataclasses.replace(split, box=(min(split.box[0], some.n), *split.box[1:]))


def slices(p: WeightGradient, split: SplitK, device: Device) -> int:
    """Slices of all launches together."""
    if parts(p, device) == 1:
        return split.count(p)
    return sum(of_some.count(some) for _, some, of_some in _sums(p, split, device))


def launches(
    tile: Tile, p: WeightGradient, split: SplitK, output: Output, buffers: dict[str, str | None], device: Device
) -> tuple[Dispatch, ...]:
    """The launches of a tile's kernel over all images, the slices of one behind those of the one before it."""
    if parts(p, device) == 1:
        return (launch(tile, p, split, output, buffers, device),)
    made, total, (of_x, of_dy) = list[Dispatch](), output.first, _image_bytes(p)
    for first, some, of_some in _sums(p, split, device):
        step = launch(tile, some, of_some, dataclasses.replace(output, first=total), buffers, device)
        ranges = {"x": Range(first * of_x, some.n * of_x), "dy": Range(first * of_dy, some.n * of_dy)}
        made.append(dataclasses.replace(step, ranges=ranges))
        total += of_some.count(some)
    return tuple(made)


def note(p: WeightGradient, device: Device) -> str:
    """What is said of a sum in several launches; nothing of one in one."""
    count = parts(p, device)
    return f"; {count} launches of {at_a_time(p, device)} images, as bindings are" if count > 1 else ""


def _bound_bytes(call: Call) -> int:
    return max(spec.nbytes for name, spec in call.specs.items() if name in ("x", "dy"))


IN_ONE_BINDING = Requirement(
    "x and dy that a binding can hold",
    lambda call, device: _bound_bytes(call) <= most_bound(device),
    lambda call, device: f"{bytes_str(_bound_bytes(call))}, {bytes_str(most_bound(device))} is the most",
)
