"""What a caller gives a run for inputs, held against what the graph takes."""

import numbers
from collections.abc import Mapping, Sequence
from types import UnionType

import numpy as np
import numpy.typing as npt

from vkconv.backend.arrays import DeviceArray, check_device
from vkconv.backend.runtime import LiveDevice
from vkconv.core import Array, InputError, UsageError, did_you_mean, given_array, how_to_convert, shape_str
from vkconv.graph.ir import TensorSpec

# What a run takes for an input.
Given = npt.ArrayLike | DeviceArray


def checked_mapping(name: str, value: object, takes: str) -> None:
    """UsageError for a setting that is no mapping, and not left out; ``takes`` is what it looks like."""
    if value is not None and not isinstance(value, Mapping):
        raise UsageError(f"{name} is {value!r}; it is a dict, such as {takes}")


def checked_count(name: str, value: object, what: str, least: int = 1) -> None:
    """UsageError for a setting that is no whole number from ``least`` on."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise UsageError(f"{name} is {value!r}; {what}")


def checked_list(name: str, value: object, such: str, kinds: UnionType | type = str) -> None:
    """UsageError for a setting that is no list, such as one text, or has something of another kind in it."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(one, kinds) for one in value):
        raise UsageError(f"{name} is {value!r}; it is a list, such as {such}")


def flag(name: str, value: object) -> bool:
    """The truth of an argument, of 1 and 0 too; UsageError for what is something else, such as the word "no"."""
    if not isinstance(value, bool | np.bool_) and not (isinstance(value, numbers.Integral) and value in (0, 1)):
        raise UsageError(f"{name} is {value!r}; it is True or False")
    return bool(value)


def by_position(
    graph: str, names: Sequence[str], arrays: Sequence[Given], named: Mapping[str, Given]
) -> dict[str, Given]:
    """Inputs by name, of those that are given in the graph's order and those that are given by name; UsageError for
    too many, and for one that is there twice."""
    if len(arrays) > len(names):
        raise UsageError(f"{graph!r} takes {len(names)} inputs ({', '.join(names)}), not {len(arrays)}")
    found = dict(zip(names, arrays, strict=False))
    for name in named:
        if name in found:
            raise UsageError(f"{graph!r}: the input {name!r} is there twice, by its place and by its name")
    return found | dict(named)


def checked_inputs(
    inputs: Mapping[str, Given], graph: str, specs: Mapping[str, TensorSpec], live: LiveDevice
) -> dict[str, Array | DeviceArray]:
    """The inputs as arrays, in the order of the graph's; InputError where they are not what it takes, by name, type and
    shape, or on another device."""
    # Most is known to fit at one glance: caches are cold after a run, and every further step takes its time.
    if type(inputs) is not dict and not isinstance(inputs, Mapping):
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
        given = inputs[name]
        if type(given) is np.ndarray and given.shape == spec.shape and given.dtype == spec.dtype.numpy:
            arrays[name] = given
        else:
            arrays[name] = _checked_input(given, f"input {name!r} of {graph!r}", spec, live)
    return arrays


def own_copies(arrays: Mapping[str, Array | DeviceArray]) -> dict[str, Array | DeviceArray]:
    """The same for a run that begins later: the caller may change arrays of the host meanwhile."""
    return {name: array if isinstance(array, DeviceArray) else np.array(array) for name, array in arrays.items()}


def _checked_input(given: Given, what: str, spec: TensorSpec, live: LiveDevice) -> Array | DeviceArray:
    """The array that ``what`` is given; InputError where it is none, or not as ``spec`` says."""
    if isinstance(given, DeviceArray):
        check_device(given, live, what)
    array = given if isinstance(given, DeviceArray) else given_array(given, what)
    if array.dtype.newbyteorder("=") != spec.dtype.numpy:
        raise InputError(
            f"{what} is {spec.dtype}, the array is {array.dtype}; {how_to_convert(given, spec.dtype.numpy.name)}"
        )
    fits = len(array.shape) == len(spec.shape) and all(
        isinstance(want, str) or want == got for want, got in zip(spec.shape, array.shape, strict=True)
    )
    if not fits:
        raise InputError(f"{what} has shape {shape_str(array.shape)}, but the model takes {shape_str(spec.shape)}")
    return array
