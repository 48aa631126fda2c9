"""Convolutions of more images than a storage buffer binding holds: some of them after the others."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from vkconv.call import Call
from vkconv.core import bytes_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core.bindings import image_step, most_bound
from vkconv.ops.core.published import Published, Rule, Rules
from vkconv.ops.core.requirements import FLOATS
from vkconv.program import Composite, Inner
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route, Sub, may_take

BY_IMAGES = "by_images"
_SOME = "some"


@dataclasses.dataclass(frozen=True)
class _ByImages:
    """``names`` are the operands and outputs that have images for their first dimension, each of an output made of the
    same one of the operands. ``shapes`` are the attributes that are the whole shape of an output."""

    names: Sequence[str]
    shapes: Sequence[str]
    routes: tuple[Route, ...]

    def tensors(self, call: Call) -> Mapping[str, TensorSpec]:
        return {name: spec for name, spec in call.specs.items() if name in self.names}

    def largest(self, call: Call) -> int:
        return max(spec.nbytes for spec in self.tensors(call).values())

    def images(self, call: Call) -> int:
        return next(iter(self.tensors(call).values())).dims[0]

    def able(self, call: Call, device: Device) -> tuple[int, ...]:
        """Numbers of images that every pass may have, the largest first."""
        images = self.images(call)
        of_image = [math.prod(spec.dims[1:]) * spec.dtype.nbytes for spec in self.tensors(call).values()]
        step, most = image_step(of_image, device), min(most_bound(device) // max(*of_image, 1), images - 1)
        return tuple(n for n in range(most // step * step, 0, -step) if images % n == 0)

    def is_beyond(self, call: Call, device: Device) -> bool:
        """Whether no binding can hold one of the tensors."""
        return self.largest(call) > most_bound(device)

    def some(self, call: Call, images: int) -> Call:
        """The call with fewer images."""

        def fewer(specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
            return {
                name: TensorSpec((images, *spec.dims[1:]), spec.dtype) if name in self.names and spec else spec
                for name, spec in specs.items()
            }

        shapes = {name: (images, *call[name][1:]) for name in self.shapes}
        return dataclasses.replace(
            call,
            operands=fewer(call.operands),  # type: ignore[arg-type]
            outputs=fewer(call.outputs),
            attrs={**call.attrs, **shapes},
        )

    def inner(self, call: Call, device: Device, params: Params) -> Mapping[str, Sub]:
        return {_SOME: Sub(self.some(call, params["images"]), self.routes)}

    def program(self, call: Call, device: Device, params: Params) -> Composite:
        count = params["images"]
        of_image = {name: math.prod(spec.dims[1:]) for name, spec in self.tensors(call).items()}
        return Composite(
            tuple(
                Inner(_SOME, {}, first={name: start * size for name, size in of_image.items()})
                for start in range(0, self.images(call), count)
            )
        )

    def params(self, call: Call, device: Device) -> Legal:
        return {"images": self.able(call, device)}

    def note(self, call: Call, device: Device, params: Params) -> str:
        count = params["images"]
        return f"{self.images(call) // count} times {count} images: a binding holds {bytes_str(most_bound(device))}"


def with_by_images(
    routes: tuple[Route, ...], names: Sequence[str], shapes: Sequence[str] = (), not_inside: Sequence[str] = ()
) -> tuple[Route, ...]:
    """The routes of a convolution, before them the one that takes some images after the others where the tensors
    ``names`` are too large for a binding. ``shapes`` are attributes that are the shape of an output, ``not_inside``
    routes that are not tried for some of the images."""
    inside = tuple(route for route in routes if route.rounds_as_f32 and route.name not in not_inside)
    cut = _ByImages(names, shapes, inside)
    beyond = Requirement(
        "a tensor of images that no binding can hold",
        cut.is_beyond,
        lambda call, device: f"at most {bytes_str(cut.largest(call))}, a binding holds {bytes_str(most_bound(device))}",
    )
    in_parts = Requirement(
        "images of which an equal number fits a binding each time, and begins where one may",
        lambda call, device: bool(cut.able(call, device)),
        lambda call, device: f"{cut.images(call)} images, at most {bytes_str(cut.largest(call))}",
    )
    route = Route(
        BY_IMAGES,
        cut.program,
        tuple(dict.fromkeys(shader for route in inside for shader in route.shaders)),
        "no binding can hold a tensor: images do not meet, so that some are computed after the others, each time on "
        "the part of the tensors that they are",
        must=(FLOATS, in_parts),
        prefer=(beyond,),
        params=cut.params,
        by_call="the most images that bindings hold: each pass reads the weights again",
        inner=cut.inner,
        note=cut.note,
    )
    return (route, *routes)


def published_by_images(
    rules: Rules, routes: Sequence[Route], names: Sequence[str], shapes: Sequence[str] = ()
) -> Rules:
    """Published rules where a tensor, or what a route keeps in scratch, may be too large for a binding: what they take
    for some of the images, inside the route that takes these after the others. The arguments are those of
    `with_by_images`."""
    cut, by_name = _ByImages(names, shapes, tuple(routes)), {route.name: route for route in routes}

    def first_able(taken: Published, call: Call, device: Device) -> str | None:
        return next((name for name in taken.routes if may_take(by_name[name], call, device)), None)

    def most_bytes(name: str, call: Call, device: Device) -> int:
        """Of the tensors of images and of what the route keeps in scratch."""
        scratch = {} if call.is_empty else by_name[name].build(call, device).scratch
        return max(cut.largest(call), *scratch.values(), 0)

    def inside(rule: Rule) -> Rule:
        def taken(call: Call, device: Device) -> Published | None:
            whole = rule(call, device)
            name = first_able(whole, call, device) if whole else None
            if whole is None or name is None or most_bytes(name, call, device) <= most_bound(device):
                return whole
            for images in cut.able(call, device):
                some = cut.some(call, images)
                of_some = rule(some, device)
                name = first_able(of_some, some, device) if of_some else None
                if of_some and name and most_bytes(name, some, device) <= most_bound(device):
                    params = {f"{_SOME}/{key}": value for key, value in of_some.params.items()}
                    return Published((BY_IMAGES,), of_some.why, {"images": images, _SOME: name, **params})
            lacks = f"bindings of more than {bytes_str(most_bound(device))}, or images that begin where one may"
            return dataclasses.replace(whole, lacks=lacks)

        return taken

    return {system: inside(rule) for system, rule in rules.items()}
