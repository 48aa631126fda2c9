"""Run-time inputs from texts: ``x=@file.npy``, ``x=1x3x48x320``, ``x=zeros``, ``x=1x3x48x320:randn:7``."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from vkconv.cli.options import bound_shapes
from vkconv.core import (
    Array,
    DType,
    InputError,
    Shape,
    UsageError,
    did_you_mean,
    expand_user,
    is_count,
    not_a_file,
    shape_str,
)
from vkconv.device import Device
from vkconv.graph import TensorSpec
from vkconv.ops.core.calls import parse_shape

FILLS = ("zeros", "ones", "randn")
GRAMMAR = "NAME=@FILE.npy or NAME=[SHAPE:]zeros|ones|randn[:SEED] or NAME=SHAPE"


@dataclasses.dataclass(frozen=True, slots=True)
class InputText:
    """What one ``--input`` asks for: a file, or a fill over a shape (None: the model's own shape)."""

    path: Path | None = None
    shape: Shape | None = None
    fill: str = "randn"
    seed: int | None = None


def parse_input(text: str) -> tuple[str, InputText]:
    """One ``--input``: the input's name (empty when it is left out) and what to feed it. Raises UsageError."""
    name, equals, value = text.partition("=")
    if not equals:
        name, value = "", text
    if value.startswith("@"):
        return name, InputText(path=expand_user(value[1:], "--input"))
    head, *rest = value.split(":")
    shape: Shape | None = None
    if head not in FILLS:
        if not head[:1].isdigit() and head != "scalar":
            raise UsageError(
                f"--input {text!r}: {head!r} is no fill and no shape{did_you_mean(head, FILLS)}; {GRAMMAR}"
            )
        shape = parse_shape(head)
        head, *rest = rest or ["randn"]
    if head not in FILLS or len(rest) > (head == "randn"):
        raise UsageError(f"--input {text!r} does not read as {GRAMMAR}")
    if rest and not is_count(rest[0]):
        raise UsageError(f"--input {text!r}: the seed {rest[0]!r} is no whole number from 0 on")
    return name, InputText(shape=shape, fill=head, seed=int(rest[0]) if rest else None)


def make_inputs(
    inputs: Mapping[str, TensorSpec],
    texts: Iterable[str] | None,
    given_shapes: Iterable[str] | None = None,
    device: Callable[[], Device] | None = None,
) -> tuple[dict[str, Array], dict[str, str]]:
    """Arrays for every input of a model, and for each a text that tells how to make it again; ``given_shapes`` are
    texts of --shape and --dim, ``device`` tells where they all go, if that is known.

    Inputs that no text names are normal random numbers, with the input's position as seed. Raises UsageError
    for texts, InputError for files and shapes that do not fit, and LimitError for what the device cannot hold.
    """
    wanted: dict[str, InputText] = {}
    for text in texts or ():
        name, parsed = parse_input(text)
        if not name:
            if len(inputs) != 1:
                raise UsageError(f"--input {text!r} names no input, and the model has {', '.join(inputs)}; {GRAMMAR}")
            name = next(iter(inputs))
        if name not in inputs:
            raise UsageError(
                f"--input {text!r}: the model has no input {name!r}{did_you_mean(name, inputs)}; "
                f"it takes {', '.join(f'{k} ({v})' for k, v in inputs.items())}"
            )
        if name in wanted:
            raise UsageError(f"--input {text!r}: the input {name!r} is there twice")
        wanted[name] = parsed
    arrays = {name: _read(name, text.path) for name, text in wanted.items() if text.path}
    shapes = {name: array.shape for name, array in arrays.items()}
    shapes |= {name: text.shape for name, text in wanted.items() if text.shape is not None}
    shapes = bound_shapes(inputs, given_shapes, "--input", shapes)
    from vkconv.check.inputs import filled  # here: what it belongs to takes time to import
    from vkconv.plan.limits import check_input

    # Not shapes.get(name, spec.dims): that raises for a symbolic spec even where the shape is given.
    dims = {name: shapes[name] if name in shapes else spec.dims for name, spec in inputs.items()}  # noqa: SIM401
    if device:  # before anything is drawn, which takes long where it is too much
        facts = device()
        for name, spec in inputs.items():
            check_input(name, dataclasses.replace(spec, shape=dims[name]), facts)
    made: dict[str, Array] = {}
    again: dict[str, str] = {}
    for index, (name, spec) in enumerate(inputs.items()):
        source = wanted.get(name, InputText())
        if source.path:
            made[name], again[name] = arrays[name], f"@{source.path}"
            continue
        shape = dims[name]
        seed = index if source.seed is None else source.seed
        made[name] = filled(name, source.fill, seed, shape, spec.dtype)
        again[name] = f"{shape_str(shape)}:{source.fill}" + (f":{seed}" if source.fill == "randn" else "")
    return made, again


def _read(name: str, path: Path) -> Array:
    if problem := not_a_file(path):
        raise InputError(f"input {name!r}: cannot read {path}: {problem}")
    try:
        with path.open("rb") as file:
            if file.read(2) == b"PK":
                raise InputError(f"input {name!r}: {path} holds several arrays; save the one you want with numpy.save")
        # Mapped: what the header declares is held against the file's size before any memory is taken.
        with np.errstate(over="ignore"):  # sizes that wrap around are refused as impossible shapes
            array = np.load(path, mmap_mode="r", allow_pickle=False)
    except InputError:
        raise
    except Exception as error:  # numpy and tokenize have no common base for what they raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else f"it is no .npy file ({error})"
        raise InputError(f"input {name!r}: cannot read {path}: {reason}") from None
    # numpy saves bf16, which it does not know, as two bytes of anything.
    return np.array(array.view(DType.BF16.numpy) if array.dtype == np.dtype("V2") else array)
