"""``.vkc`` files: a graph as one safetensors file, specified in docs/format.md.

Writing goes through the safetensors library. Reading does not: it checks the header itself, so that a refusal
can say where the file is wrong, before it takes memory for anything.
"""

import json
import math
import os
import struct
from pathlib import Path
from typing import IO, Annotated, Any, NoReturn

import msgspec
import numpy as np
import safetensors.numpy

from vkconv.core import (
    MAX_NODES,
    Array,
    DType,
    GraphError,
    InputError,
    ModelError,
    VkconvError,
    atomic_write,
    bytes_str,
    not_a_file,
    shape_problem,
    shape_str,
    short,
)
from vkconv.files import read_array
from vkconv.graph.ir import AttrValue, Graph, Node, TensorSpec

SCHEMA = "vkconv.graph/1"
METADATA_KEY = "vkconv.graph"
MAX_RANK = 8
MAX_HEADER_BYTES = 32 << 20
MAX_TENSORS = 65_536
MAX_NAME = 4_096  # characters of any name
# What JSON is read into takes many times its bytes: objects of the graph are its nodes and their float attributes.
_MAX_OBJECTS = 32 * MAX_NODES

_AGAIN = "convert or copy the model again"
_DTYPES = {
    "F32": DType.F32,
    "F16": DType.F16,
    "BF16": DType.BF16,
    "I64": DType.I64,
    "I32": DType.I32,
    "U32": DType.U32,
    "U16": DType.U16,
    "I16": DType.I16,
    "I8": DType.I8,
    "U8": DType.U8,
    "BOOL": DType.BOOL,
}

_I64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
_NameOrNone = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]


class _Float(msgspec.Struct, forbid_unknown_fields=True):
    """A float attribute, or a list of them, marked as such: JSON writers do not keep 1.0 and 1 apart."""

    float: float | str | list[float | str]


class _Input(msgspec.Struct, forbid_unknown_fields=True):
    name: _Name
    shape: Annotated[list[_Size | _Name], msgspec.Meta(max_length=MAX_RANK)]
    dtype: DType


class _Node(msgspec.Struct, forbid_unknown_fields=True):
    name: _Name
    op: _Name
    inputs: list[_NameOrNone]
    outputs: list[_NameOrNone]
    attrs: dict[str, bool | _I64 | str | list[_I64] | _Float]


class _Graph(msgspec.Struct, forbid_unknown_fields=True):
    schema: str
    name: _NameOrNone
    inputs: list[_Input]
    outputs: list[_Name]
    nodes: Annotated[list[_Node], msgspec.Meta(max_length=MAX_NODES)]
    metadata: dict[str, str]


class _Tensor(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: Annotated[list[_Size], msgspec.Meta(max_length=MAX_RANK)]
    data_offsets: tuple[_Size, _Size]


def save_vkc(graph: Graph, path: str | Path) -> None:
    """Write the graph; equal graphs give equal bytes, and the file appears whole or not at all.

    Raises GraphError naming what the format cannot hold (a rank above 8, an array type without a vkconv dtype,
    control flow, the constant name ``__metadata__``, too many constants or long names), ModelError where the place
    cannot be written.
    """
    path = Path(path)
    if graph.bodies:
        control = next(node for node in graph.nodes if node.name in graph.bodies)
        raise GraphError(
            f"graph {graph.name!r} has control flow ({control}), which a .vkc file does not hold; keep the ONNX file"
        )
    tensors: dict[str, Array] = {}
    if len(graph.constants) > MAX_TENSORS:
        raise GraphError(
            f"graph {graph.name!r} has {len(graph.constants)} constants, the format holds {MAX_TENSORS}; join some"
        )
    for name, array in graph.constants.items():
        if len(name) > MAX_NAME:
            raise GraphError(f"constant {short(name)}: a name has at most {MAX_NAME} characters; rename it")
        if name == "__metadata__":
            raise GraphError(f"graph {graph.name!r}: a constant named '__metadata__' cannot be saved; rename it")
        if array.ndim > MAX_RANK:
            raise GraphError(
                f"graph {graph.name!r}: constant {name!r} has rank {array.ndim}, the format holds {MAX_RANK}"
            )
        try:
            dtype = DType.of(array.dtype)
        except GraphError as error:
            raise GraphError(f"graph {graph.name!r}: constant {name!r}: {error}") from None
        tensors[name] = np.asarray(array, dtype.numpy, order="C")
    text = _encode(graph)
    data = safetensors.numpy.save(tensors, metadata={METADATA_KEY: text})
    header = int(struct.unpack("<Q", data[:8])[0])
    if header > MAX_HEADER_BYTES:
        raise GraphError(
            f"graph {graph.name!r} makes a header of {header} bytes, the format holds {MAX_HEADER_BYTES}; shorten its "
            "metadata, or names"
        )
    try:
        with atomic_write(path) as file:
            file.write(data)
    except OSError as error:
        raise ModelError(f"{path}: cannot be written ({error.strerror}); choose another place") from None


def load_vkc(path: str | Path) -> Graph:
    """The graph of a file; constants are read-only.

    Raises ModelError saying what is wrong and where for anything but a whole and legal file.
    """
    path = Path(path)
    if problem := not_a_file(path):
        _refuse(path, problem)
    try:
        with path.open("rb", buffering=0) as file:
            return _load(path, file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        _refuse(path, f"cannot be read ({error.strerror}); check its permissions")


def _load(path: Path, file: IO[bytes], size: int) -> Graph:
    begin = 8 + _header_bytes(path, file, size)
    text = read_array(file, 8, (begin - 8,), DType.U8).tobytes()
    header = _parse_json(path, "the header", text, MAX_TENSORS + 2)
    metadata = header.pop("__metadata__", {})
    tensors = _tensors(path, size - begin, header)
    try:
        texts = msgspec.convert(metadata, dict[str, str])
    except msgspec.ValidationError as error:
        _refuse(path, f"__metadata__: {error}; {_AGAIN}")
    if METADATA_KEY not in texts:
        _refuse(path, f"is a safetensors file without a graph (no {METADATA_KEY!r} in its metadata); name a .vkc file")
    graph = texts[METADATA_KEY].encode("utf-8", "surrogatepass")
    stored = _parse_json(path, METADATA_KEY, graph, _MAX_OBJECTS)
    schema = stored.get("schema")
    if schema != SCHEMA:
        found = short(schema) if isinstance(schema, str) else type(schema).__name__
        _refuse(path, f"has the schema {found}, this vkconv reads {SCHEMA!r}; convert the model again")
    try:
        checked = msgspec.convert(stored, _Graph)
        constants = {name: _constant(path, name, tensor, file, begin) for name, tensor in tensors.items()}
        return _decode(checked, constants)
    except (msgspec.ValidationError, VkconvError) as error:
        if isinstance(error, ModelError):
            raise
        _refuse(path, f"{METADATA_KEY}: {error}; {_AGAIN}")


def _refuse(path: Path, problem: str) -> NoReturn:
    raise ModelError(f"{path}: {problem}") from None


def _header_bytes(path: Path, file: IO[bytes], size: int) -> int:
    if not size:
        _refuse(path, f"the file is empty; {_AGAIN}")
    if size < 8:
        _refuse(path, f"has {size} bytes, a .vkc file begins with 8 for the header's length; {_AGAIN}")
    first = file.read(9)
    length = int(struct.unpack("<Q", first[:8])[0])
    if length > MAX_HEADER_BYTES:
        _refuse(
            path, f"is not a .vkc file (its header would have {length} bytes, at most {MAX_HEADER_BYTES} are legal)"
        )
    if length > size - 8:
        _refuse(path, f"is truncated: a header of {length} bytes, {size - 8} bytes are there; {_AGAIN}")
    if first[8:] != b"{":
        _refuse(path, "is not a .vkc file (its header does not begin with '{')")
    return length


def _parse_json(path: Path, what: str, text: bytes, most_objects: int) -> dict[str, Any]:
    """A JSON object in which no key occurs twice, at any depth, and that holds at most so many objects."""
    objects = 0

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal objects
        objects += 1
        if objects > most_objects or len(pairs) > most_objects:
            raise ValueError(f"it holds more than {most_objects} objects, and no more are legal")
        found: dict[str, Any] = {}
        for key, value in pairs:
            if len(key) > MAX_NAME:
                raise ValueError(f"the key {short(key)} is longer than the {MAX_NAME} that a name may have")
            if key in found:
                raise ValueError(f"the key {short(key)} occurs twice")
            found[key] = value
        return found

    def no_constant(word: str) -> NoReturn:
        raise ValueError(f"{word} is not JSON")

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique, parse_constant=no_constant)
        if rb"\ud" in text.lower():  # escapes of halves of characters, of which each needs its other one
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        _refuse(path, f"{what} is not legal JSON ({error}); {_AGAIN}")
    if not isinstance(value, dict):
        _refuse(path, f"{what} is not a JSON object; {_AGAIN}")
    return value


def _tensors(path: Path, total: int, header: dict[str, Any]) -> dict[str, _Tensor]:
    """The tensors in ``total`` bytes, after types, shapes and offsets are checked; they fill them without gaps."""
    if len(header) > MAX_TENSORS:
        _refuse(path, f"has {len(header)} tensors, at most {MAX_TENSORS} are legal")
    tensors: dict[str, _Tensor] = {}
    for name, entry in header.items():
        where = f"tensor {short(name)}"
        try:
            tensor = msgspec.convert(entry, _Tensor)
        except msgspec.ValidationError as error:
            _refuse(path, f"{where}: {error}; {_AGAIN}")
        if not name:
            _refuse(path, f"a tensor has an empty name; {_AGAIN}")
        if tensor.dtype not in _DTYPES:
            _refuse(path, f"{where} has the dtype {short(tensor.dtype)}, the format has {', '.join(_DTYPES)}")
        if problem := shape_problem(tensor.shape, _DTYPES[tensor.dtype]):
            _refuse(path, f"{where} cannot have the shape {shape_str(tensor.shape)}: {problem}; {_AGAIN}")
        first, last = tensor.data_offsets
        nbytes = math.prod(tensor.shape) * _DTYPES[tensor.dtype].nbytes
        if last - first != nbytes:
            shape = shape_str(tensor.shape)
            _refuse(
                path, f"{where}: offsets span {last - first} bytes, {shape} of {tensor.dtype} has {nbytes}; {_AGAIN}"
            )
        if last > total:
            _refuse(path, f"is truncated: {where} ends at byte {last} of the data, which has {total}; {_AGAIN}")
        tensors[name] = tensor
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        first, last = tensor.data_offsets
        if first != end:
            _refuse(path, f"tensor {short(name)} begins at byte {first} of the data where {end} is due; {_AGAIN}")
        end = last
    if end != total:
        _refuse(path, f"has {bytes_str(total)} of data, its tensors use {bytes_str(end)}; {_AGAIN}")
    return tensors


def _constant(path: Path, name: str, tensor: _Tensor, file: IO[bytes], begin: int) -> Array:
    dtype = _DTYPES[tensor.dtype]
    try:
        array = read_array(file, begin + tensor.data_offsets[0], tuple(tensor.shape), dtype)
    except InputError as error:
        _refuse(path, f"tensor {short(name)} cannot be read: {error}")
    if dtype is DType.BOOL and array.size and int(array.view(np.uint8).max()) > 1:
        _refuse(path, f"tensor {short(name)} is BOOL and holds bytes other than 0 and 1; {_AGAIN}")
    return array


def _encode(graph: Graph) -> str:
    """The graph as JSON text. Raises GraphError for what could not be read back."""
    try:
        stored = _Graph(
            schema=SCHEMA,
            name=graph.name,
            inputs=[_Input(name, list(spec.shape), spec.dtype) for name, spec in graph.inputs.items()],
            outputs=list(graph.outputs),
            nodes=[
                _Node(
                    node.name,
                    node.op,
                    list(node.inputs),
                    list(node.outputs),
                    {name: _encode_attr(node.attrs[name]) for name in sorted(node.attrs)},
                )
                for node in graph.nodes
            ],
            metadata={key: graph.metadata[key] for key in sorted(graph.metadata)},
        )
        text = msgspec.json.encode(stored)
        msgspec.json.decode(text, type=_Graph)
    except (msgspec.MsgspecError, UnicodeError, OverflowError, TypeError) as error:
        raise GraphError(f"graph {graph.name!r} cannot be saved: {error}") from None
    return text.decode("utf-8")


def _decode(stored: _Graph, constants: dict[str, Array]) -> Graph:
    inputs: dict[str, TensorSpec] = {}
    for entry in stored.inputs:
        if entry.name in inputs:
            raise GraphError(f"two inputs are named {entry.name!r}")
        inputs[entry.name] = TensorSpec(tuple(entry.shape), entry.dtype)
    nodes = tuple(
        Node(
            node.name,
            node.op,
            tuple(node.inputs),
            tuple(node.outputs),
            {name: _decode_attr(value) for name, value in node.attrs.items()},
        )
        for node in stored.nodes
    )
    return Graph(inputs, tuple(stored.outputs), nodes, constants, stored.name, stored.metadata)


def _encode_attr(value: AttrValue) -> bool | int | str | list[int] | _Float:
    if isinstance(value, float):
        return _Float(_encode_float(value))
    if isinstance(value, tuple):
        if any(isinstance(v, float) for v in value):
            return _Float([_encode_float(float(v)) for v in value])
        return [int(v) for v in value]
    return value


def _encode_float(value: float) -> float | str:
    return value if math.isfinite(value) else {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan")


def _decode_attr(value: bool | int | str | list[int] | _Float) -> AttrValue:
    if isinstance(value, _Float):
        if isinstance(value.float, list):
            return tuple(_decode_float(v) for v in value.float)
        return _decode_float(value.float)
    return tuple(value) if isinstance(value, list) else value


def _decode_float(value: float | str) -> float:
    if value not in ("inf", "-inf", "nan") and (isinstance(value, str) or not math.isfinite(value)):
        known = "those that are not finite are written 'inf', '-inf' and 'nan'"
        raise GraphError(f"{short(str(value))} is no float; {known}")

    return float(value)
