"""Convolutions of more images than a storage buffer binding holds: some of them after the others."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from vkconv.call import Call
from vkconv.core import bytes_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core.bindings import image_step, most_bound
from vkconv.ops.core.requirements import FLOATS
from vkconv.program import Composite, Inner
from vkconv.route import Legal, Params, Requirement, Route, Sub

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
    inside = tuple(route for route in routes if route.f16_depth is None and route.name not in not_inside)
    cut = _ByImages(names, shapes, inside)
    beyond = Requirement(
        "a tensor of images that no binding can hold",
        lambda call, device: cut.largest(call) > most_bound(device),
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
        inner=cut.inner,
        note=cut.note,
    )
    return (route, *routes)
