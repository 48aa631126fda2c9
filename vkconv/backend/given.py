"""What a caller gives a run for inputs, held against what the graph takes."""

from collections.abc import Mapping

import numpy.typing as npt

from vkconv.backend.arrays import DeviceArray, check_device
from vkconv.backend.runtime import LiveDevice
from vkconv.core import Array, InputError, did_you_mean, given_array, shape_str
from vkconv.graph.ir import TensorSpec

# What a run takes for an input.
Given = npt.ArrayLike | DeviceArray


def checked_inputs(
    inputs: Mapping[str, Given], graph: str, specs: Mapping[str, TensorSpec], live: LiveDevice
) -> dict[str, Array | DeviceArray]:
    """The inputs as arrays, in the order of the graph's; InputError where they are not what it takes, by name, type and
    shape, or on another device."""
    if not isinstance(inputs, Mapping):
        raise InputError(
            f"{graph!r} takes a dict from input names to arrays, "
            f"{{{', '.join(f'{name!r}: array' for name in specs)}}}, not a {type(inputs).__name__}"
        )
    for name in inputs:
        if name not in specs:
            raise InputError(
                f"{graph!r} has no input {name!r}{did_you_mean(name, specs)}; it takes "
                + ", ".join(f"{k} ({v})" for k, v in specs.items())
            )
    arrays: dict[str, Array | DeviceArray] = {}
    for name, spec in specs.items():
        if name not in inputs:
            raise InputError(f"{graph!r} needs the input {name!r} ({spec}), which is missing")
        given, what = inputs[name], f"input {name!r} of {graph!r}"
        if isinstance(given, DeviceArray):
            check_device(given, live, what)
        array = given if isinstance(given, DeviceArray) else given_array(given, what)
        if array.dtype.newbyteorder("=") != spec.dtype.numpy:
            raise InputError(
                f"{what} is {spec.dtype}, the array is {array.dtype}; "
                f"convert it with .astype({spec.dtype.numpy.name!r})"
            )
        fits = len(array.shape) == len(spec.shape) and all(
            isinstance(want, str) or want == got for want, got in zip(spec.shape, array.shape, strict=True)
        )
        if not fits:
            raise InputError(f"{what} has shape {shape_str(array.shape)}, but the model takes {shape_str(spec.shape)}")
        arrays[name] = array
    return arrays
