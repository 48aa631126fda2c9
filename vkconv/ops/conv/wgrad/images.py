"""A sum over more images than a binding holds, as launches over some of them: each binds its part of x and dy."""

import dataclasses
import functools
import math
from collections.abc import Iterator

from vkconv.call import Call
from vkconv.core import bytes_str, ceil_div
from vkconv.device import Device
from vkconv.ops.conv.wgrad.kernels import Output, SplitK, Tile, evenly, launch
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.core.bindings import image_step, most_bound, offset_step
from vkconv.ops.core.requirements import scratch_budget
from vkconv.ops.kernels.strided import strided_copy, walk_defaults
from vkconv.program import Dispatch, Program, Range
from vkconv.requirement import Requirement


def _image_bytes(p: WeightGradient) -> dict[str, int]:
    """Of x and dy, in f32: so programs see calls of 16-bit floats too."""
    return {"x": 4 * p.c_in * math.prod(p.extent), "dy": 4 * p.c_out * math.prod(p.out)}


def at_a_time(p: WeightGradient, device: Device) -> int:
    """Images that a launch sums over: all, where no fewer would help."""
    return _at_a_time(p, device)[0]


@functools.lru_cache(maxsize=256)  # each candidate of the chooser asks
def _at_a_time(p: WeightGradient, device: Device) -> tuple[int, frozenset[str]]:
    """Images of a launch, and which of x and dy are copied where no binding may begin with an image of theirs: none, if
    that can be, rather one that a binding holds whole than one that has to be cut."""
    of_image, most = _image_bytes(p), most_bound(device)
    if p.n * max(of_image.values()) <= most:
        return p.n, frozenset()
    cut = [name for name, nbytes in of_image.items() if p.n * nbytes > most]
    for aligned in (tuple(of_image), tuple(cut), ()):
        copied = frozenset(of_image) - frozenset(aligned)
        step = image_step([of_image[name] for name in aligned], device, halved=True)
        images = most // max(of_image.values())
        if copied:
            images = min(images, scratch_budget(device) // sum(of_image[name] for name in copied))
        if images >= step:
            return images // step * step, copied
    return p.n, frozenset()


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
) -> Program:
    """The launches of a tile's kernel over all images, the slices of one behind those of the one before it, and copies
    of images with which no binding may begin."""
    if parts(p, device) == 1:
        return Program((launch(tile, p, split, output, buffers, device),))
    made, total, scratch = list[Dispatch](), output.first, dict[str, int]()
    for first, some, of_some in _sums(p, split, device):
        ranges, bound = dict[str, Range](), dict(buffers)
        for name, nbytes in _image_bytes(p).items():
            part = Range(first * nbytes, some.n * nbytes)
            if name in _at_a_time(p, device)[1] and part.offset % offset_step(device, halved=True):
                bound[name] = f"{name}_images"
                scratch[f"{name}_images"] = max(part.nbytes, scratch.get(f"{name}_images", 0))
                made += _copied(name, part, device)
            else:
                ranges[name] = part
        step = launch(tile, some, of_some, dataclasses.replace(output, first=total), bound, device)
        made.append(dataclasses.replace(step, ranges=ranges))
        total += of_some.count(some)
    return Program(tuple(made), scratch=scratch, elements=frozenset(scratch))


def _copied(name: str, part: Range, device: Device) -> Iterator[Dispatch]:
    """The copy of images that begin where no binding may, from the last place before them where one may."""
    before = part.offset % offset_step(device, halved=True)
    size = (part.nbytes // 4,)
    for step in strided_copy(
        device, walk_defaults(device), name, f"{name}_images", size, (1,), (1,), source_base=before // 4
    ):
        source = Range(part.offset - before, before + part.nbytes)
        yield dataclasses.replace(step, ranges={"x": source})


def note(p: WeightGradient, device: Device) -> str:
    """What is said of a sum in several launches; nothing of one in one."""
    count, copied = parts(p, device), sorted(_at_a_time(p, device)[1])
    said = f", copies of {' and '.join(copied)} where no binding may begin" if copied else ""
    return f"; {count} launches of {at_a_time(p, device)} images, as bindings are{said}" if count > 1 else ""


def _bound_bytes(call: Call) -> int:
    return max(spec.nbytes for name, spec in call.specs.items() if name in ("x", "dy"))


IN_ONE_BINDING = Requirement(
    "x and dy that a binding can hold",
    lambda call, device: _bound_bytes(call) <= most_bound(device),
    lambda call, device: f"{bytes_str(_bound_bytes(call))}, {bytes_str(most_bound(device))} is the most",
)
