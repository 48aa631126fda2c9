"""Windows over two dimensions, as ONNX's convolutions and pools have them."""

from vkconv.graph.onnx.windows import AUTO_PAD
from vkconv.onnx_export.view import View

_PADS = {ours: theirs for theirs, ours in AUTO_PAD.items()}


def pair(value: tuple[int, ...], count: int = 2) -> list[int]:
    """One value, or two, as so many."""
    return [int(n) for n in value * (count // len(value))]


def window(v: View) -> dict[str, object]:
    """strides, dilations and padding."""
    auto = v.attrs.get("auto_pad", "explicit")
    return {
        "strides": pair(v.attrs["stride"]),
        "dilations": pair(v.attrs["dilation"]),
        "pads": pair(v.attrs["padding"], 4) if auto == "explicit" else None,
        "auto_pad": _PADS[auto] if auto != "explicit" else None,
    }
