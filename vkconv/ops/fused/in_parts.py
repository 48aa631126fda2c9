"""A convolution whose result is reduced over images too, some of these at a time: what lies between fits a budget of
scratch, and whole images need not."""

import dataclasses
from collections.abc import Callable, Mapping

from vkconv.call import Call
from vkconv.core import DType, bytes_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops.conv.conv2d.op import CONV2D
from vkconv.ops.core.bindings import image_step
from vkconv.ops.core.requirements import FLOATS, scratch_budget
from vkconv.ops.fused.addends import plain
from vkconv.ops.fused.definition import is_single
from vkconv.ops.fused.in_turn import repeating
from vkconv.ops.fused.stages import REDUCING, rest_of
from vkconv.ops.reduce.op import REDUCE
from vkconv.program import Composite, Inner
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route, Sub

_OF_IMAGES = ("x", "residual")
# Parts are reduced along their first dimension, whose elements lie apart: not by routes of rows.
_OF_PARTS = tuple(route for route in REDUCING if route.name not in ("subgroup", "clusters"))


def _some(conv: Call, images: int) -> Call:
    """The convolution of so many images."""

    def fewer(name: str, spec: TensorSpec | None) -> TensorSpec | None:
        return TensorSpec((images, *spec.dims[1:]), spec.dtype) if spec and name in _OF_IMAGES else spec

    operands = {name: fewer(name, spec) for name, spec in conv.operands.items()}
    return dataclasses.replace(
        conv, operands=operands, outputs={"y": TensorSpec((images, *conv.shape("y")[1:]), conv.outputs["y"].dtype)}
    )


def _part(call: Call, conv: Call) -> Call:
    """The reduction of some images to a part of the output, in f32."""
    made = REDUCE.call({"x": conv.outputs["y"]}, {"op": call["op"], "axes": call["axes"], "keepdims": False})
    return dataclasses.replace(made, outputs={"y": TensorSpec(made.shape("y"), DType.F32)})


@dataclasses.dataclass(frozen=True, slots=True)
class _Cut:
    """Images at a time, and bytes of scratch for these and for the parts that all of them make."""

    images: int
    nbytes: int


def _cuts(call: Call, conv: Call, device: Device) -> tuple[_Cut, ...]:
    """Every way to cut a call into equal parts that begin where a binding may, the most images first."""
    product, y = conv.outputs["y"], call.outputs["y"]
    n = product.dims[0]
    if n < 2 or image_step([4 * y.size], device) > 1:
        return ()
    step = image_step([spec.nbytes // n for name in _OF_IMAGES if (spec := conv.operands.get(name))], device)
    every = (_Cut(k, 4 * (k * product.size // n + n // k * y.size)) for k in range(n - 1, 0, -1) if n % k == 0)
    return tuple(cut for cut in every if cut.images % step == 0 and cut.nbytes <= scratch_budget(device))


def in_parts(of: Callable[[Call], Call]) -> Route:
    """The route of conv_reduce, whose convolution is ``of`` a call, by some images after the others."""
    convolutions = repeating(CONV2D)

    def cuts(call: Call, device: Device) -> tuple[_Cut, ...]:
        return _cuts(call, of(call), device)

    def inner(call: Call, device: Device, params: Params) -> Mapping[str, Sub]:
        conv = of(call)
        some = _some(conv, params["images"])
        part = _part(call, some)
        rest = rest_of(call, part, conv.shape("y")[0] // params["images"])
        return {CONV2D.name: Sub(some, convolutions), "part": Sub(part, REDUCING), "rest": Sub(rest, _OF_PARTS)}

    def program(call: Call, device: Device, params: Params) -> Composite:
        conv, images = of(call), params["images"]
        n, size = conv.shape("y")[0], call.outputs["y"].size
        of_image = {name: spec.size // n for name in _OF_IMAGES if (spec := conv.operands.get(name))}
        steps: list[Inner] = []
        for part, image in enumerate(range(0, n, images)):
            begin = {name: image * count for name, count in of_image.items()}
            steps += [
                Inner(CONV2D.name, {"y": "some"}, first=begin),
                Inner("part", {"x": "some", "y": "parts"}, first={"y": part * size}),
            ]
        scratch = {"some": 4 * images * conv.outputs["y"].size // n, "parts": 4 * n // images * size}
        return Composite((*steps, Inner("rest", {"x": "parts"})), scratch=scratch, elements=frozenset({"some"}))

    def legal(call: Call, device: Device) -> Legal:
        return {"images": tuple(cut.images for cut in cuts(call, device))}

    def note(call: Call, device: Device, params: Params) -> str:
        (cut,) = (cut for cut in cuts(call, device) if cut.images == params["images"])
        whole = bytes_str(_whole_bytes(of(call)))
        return f"{of(call).shape('y')[0] // cut.images} parts, {bytes_str(cut.nbytes)} scratch in place of {whole}"

    over_images = Requirement(
        "one reduction, over images, and the product not wanted besides",
        lambda call, device: is_single(call) and 0 in call["axes"],
        lambda call, device: f"{', '.join(call.outputs)} over {' and '.join(map(str, call['axes']))}",
    )
    fits = Requirement(
        "equal parts of images that begin where a binding may, within the device's budget of scratch",
        lambda call, device: bool(cuts(call, device)),
        lambda call, device: (
            f"{of(call).shape('y')[0]} images of {bytes_str(_whole_bytes(of(call)))}, "
            f"{bytes_str(scratch_budget(device))} is the most"
        ),
    )
    beyond = Requirement(
        "a result of the convolution that is larger than the device's budget of scratch",
        lambda call, device: _whole_bytes(of(call)) > scratch_budget(device),
        lambda call, device: f"{bytes_str(_whole_bytes(of(call)))}, {bytes_str(scratch_budget(device))} is the most",
    )
    shaders = dict.fromkeys(s for route in (*convolutions, *REDUCING) for s in route.shaders)
    return Route(
        "in_parts",
        program,
        tuple(shaders),
        "some images convolved into scratch, which is reduced to a part before the next ones take its place, then the "
        "parts: a reduction over images meets each of a tile's sums once, so that tiles have nothing to reduce",
        (FLOATS, over_images, plain(of), fits),
        (beyond,),
        params=legal,
        inner=inner,
        note=note,
    )


def _whole_bytes(conv: Call) -> int:
    return 4 * conv.outputs["y"].size
