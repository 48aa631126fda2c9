"""Import rules for resizing and for sampling at places that are computed."""

from vkconv.graph.ir import AttrValue
from vkconv.graph.onnx.elementwise import Rule
from vkconv.graph.onnx.view import NodeView

# ONNX's defaults come first.
COORDINATES = (
    "half_pixel",
    "asymmetric",
    "align_corners",
    "pytorch_half_pixel",
    "half_pixel_symmetric",
    "tf_crop_and_resize",
)
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
# Resize 11 and 12 have tf_half_pixel_for_nn, which samples half a pixel behind half_pixel: nearest_mode here is that of
# half_pixel which takes the same elements.
HALF_A_PIXEL_BEHIND = {"floor": "round_prefer_ceil", "round_prefer_floor": "ceil"}
POLICIES = ("stretch", "not_larger", "not_smaller")


def _resize(n: NodeView) -> None:
    """Resize 10 and Upsample sample asymmetrically and round down, Resize 10 up where an axis becomes shorter, as ONNX
    Runtime does; Resize 11 and later say how."""
    mode = n.attr_str("mode", "nearest")
    if mode not in ("nearest", "linear", "cubic"):
        n.refuse(f"mode={mode!r}; vkconv has nearest, linear and cubic")
    attrs: dict[str, AttrValue] = {"mode": mode, "coordinate": "asymmetric", "nearest": "floor"}
    if n.op_type == "Resize" and n.version >= 11:
        _resize_options(n, attrs)
        roi, scales, sizes = (1 if attrs["coordinate"] == "tf_crop_and_resize" else len(n.inputs)), 2, 3
    else:
        if n.op_type == "Resize" and mode == "nearest":
            attrs["nearest"] = "ceil_where_smaller"
        roi, scales, sizes = len(n.inputs), 1, 4
    if n.op_type == "Upsample" and n.version < 9:
        n.finish("resize", n.input(0), **attrs, scales=n.attr_floats("scales"))
        return
    # sizes are there, or scales: what is empty counts as absent.
    given = n.const(sizes) if n.has(sizes) else None
    if n.has(sizes) and (given is None or given.size):
        inputs, found = n.host(sizes=sizes)
        attrs |= found
    else:
        found, inputs = _floats(n, "scales", scales)
        inputs = ["", *inputs] if inputs else []
        attrs |= found
    found, region = _floats(n, "roi", roi)
    if region:
        inputs = [*inputs, *[""] * (2 - len(inputs)), *region]
    n.finish("resize", n.input(0), *inputs, **attrs, **found)


def _floats(n: NodeView, name: str, i: int) -> tuple[dict[str, AttrValue], list[str]]:
    """Floats that steer an op: as an attribute where the model fixes them, else as a node input."""
    if not n.has(i):
        return {}, []
    values = n.const(i)
    return ({}, [n.input(i)]) if values is None else ({name: tuple(float(v) for v in values.reshape(-1))}, [])


def _resize_options(n: NodeView, attrs: dict[str, AttrValue]) -> None:
    where, nearest = n.attr_str("coordinate_transformation_mode", ""), n.attr_str("nearest_mode", NEAREST[0])
    behind = where == "tf_half_pixel_for_nn"
    if behind and (attrs["mode"] != "nearest" or nearest not in HALF_A_PIXEL_BEHIND):
        given = f"mode={attrs['mode']!r} and nearest_mode={nearest!r}"
        has = f"nearest, and {' or '.join(HALF_A_PIXEL_BEHIND)}"
        n.refuse(f"coordinate_transformation_mode={where!r} with {given}; vkconv has it with {has}")
    for attr, name, choices in (
        ("coordinate", "coordinate_transformation_mode", COORDINATES),
        ("nearest", "nearest_mode", NEAREST),
        ("policy", "keep_aspect_ratio_policy", POLICIES),
    ):
        value = n.attr_str(name, choices[0])
        if behind and attr != "policy":
            value = "half_pixel" if attr == "coordinate" else HALF_A_PIXEL_BEHIND[value]
        if value not in choices:
            n.refuse(f"{name}={value!r}; vkconv has {', '.join(choices)}")
        if attr != "policy" or value != choices[0]:
            attrs[attr] = value
    if n.has_attr("axes"):
        attrs["axes"] = n.attr_ints("axes")
    if n.attr_flag("exclude_outside"):
        attrs["exclude_outside"] = True
    if n.attr_flag("antialias"):
        attrs["antialias"] = True
    a, beyond = n.attr_float("cubic_coeff_a", -0.75), n.attr_float("extrapolation_value", 0.0)
    if attrs["mode"] == "cubic":
        attrs["cubic_a"] = a
    if attrs["coordinate"] == "tf_crop_and_resize":
        attrs["beyond"] = beyond


# Names of older opsets beside those of GridSample-20.
_GRID_MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "cubic": "cubic", "bicubic": "cubic"}


def _grid_sample(n: NodeView) -> None:
    mode, padding = n.attr_str("mode", "linear"), n.attr_str("padding_mode", "zeros")
    if mode not in _GRID_MODES:
        n.refuse(f"mode={mode!r}; vkconv has {', '.join(_GRID_MODES)}")
    attrs: dict[str, AttrValue] = {"mode": _GRID_MODES[mode], "align_corners": n.attr_flag("align_corners")}
    n.finish("grid_sample", n.input(0), n.input(1), padding=padding, **attrs)


def _affine_grid(n: NodeView) -> None:
    inputs, attrs = n.host(size=1)
    n.finish("affine_grid", n.input(0), *inputs, align_corners=n.attr_flag("align_corners"), **attrs)


def _col2im(n: NodeView) -> None:
    inputs, attrs = n.host(image=1, block=2)
    for name, attr in (("stride", "strides"), ("dilation", "dilations"), ("padding", "pads")):
        attrs[name] = n.attr_ints(attr)
    n.finish("col2im", n.input(0), *inputs, **attrs)


def _deform_conv(n: NodeView) -> None:
    n.ignore("kernel_shape")  # that of the weights
    attrs: dict[str, AttrValue] = {"groups": n.attr_int("group", 1), "offset_groups": n.attr_int("offset_group", 1)}
    for name, attr in (("stride", "strides"), ("dilation", "dilations"), ("padding", "pads")):
        if n.has_attr(attr):
            attrs[name] = n.attr_ints(attr)
    n.finish("deform_conv2d", *(n.input(i) for i in range(5)), **attrs)


def _roi_align(n: NodeView) -> None:
    """Opset 16 takes half a pixel off; what came before, and output_half_pixel, has no region of less than one."""
    default = "half_pixel" if n.version >= 16 else "output_half_pixel"
    where = n.attr_str("coordinate_transformation_mode", default)
    if where not in ("half_pixel", "output_half_pixel"):
        n.refuse(f"coordinate_transformation_mode={where!r}; ONNX has half_pixel and output_half_pixel")
    n.finish(
        "roi_align",
        n.input(0),
        n.input(1),
        n.input(2),
        cells=(n.attr_int("output_height", 1), n.attr_int("output_width", 1)),
        samples=n.attr_int("sampling_ratio", 0),
        scale=n.attr_float("spatial_scale", 1.0),
        offset=0.5 if where == "half_pixel" else 0.0,
        at_least_one=where == "output_half_pixel",
        mode=n.attr_str("mode", "avg"),
    )


RULES: dict[str, Rule] = {
    "AffineGrid": _affine_grid,
    "Col2Im": _col2im,
    "DeformConv": _deform_conv,
    "GridSample": _grid_sample,
    "Resize": _resize,
    "RoiAlign": _roi_align,
    "Upsample": _resize,
}
