"""Reading ONNX protobufs: the file, tensors with their external data, attributes, value types and ranks."""

import dataclasses
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper

from vkconv.core import (
    MAX_NODES,
    Array,
    DType,
    InputError,
    ModelError,
    bytes_str,
    not_a_file,
    shape_problem,
)
from vkconv.files import read_array, read_model_file
from vkconv.graph.onnx import contrib_kept, worker
from vkconv.graph.onnx.functions import check_growth
from vkconv.graph.onnx.narrow import NARROW, Narrow

DTYPES: dict[int, DType] = {
    onnx.TensorProto.FLOAT: DType.F32,
    onnx.TensorProto.FLOAT16: DType.F16,
    onnx.TensorProto.BFLOAT16: DType.BF16,
    onnx.TensorProto.INT64: DType.I64,
    onnx.TensorProto.INT32: DType.I32,
    onnx.TensorProto.UINT32: DType.U32,
    onnx.TensorProto.UINT16: DType.U16,
    onnx.TensorProto.INT16: DType.I16,
    onnx.TensorProto.INT8: DType.I8,
    onnx.TensorProto.UINT8: DType.U8,
    onnx.TensorProto.BOOL: DType.BOOL,
}

# Shape inference needs the values of shape-like constants only; larger ones travel as their type.
_SMALL_ELEMENTS = 64
_F64_HINT = "; load(..., f64_as_f32=True) and vkconv convert --f64-as-f32 take f64 for f32"
# Large models take seconds.
_TIMEOUT_S: float = 60


class RefusedError(Exception):
    """Something well-formed that vkconv does not have; the importer collects these into one error."""


@dataclasses.dataclass(frozen=True, slots=True)
class Opaque:
    """An attribute value no rule reads, such as a subgraph; ``what`` names its kind for the refusal."""

    what: str


RunTask = Callable[[worker.Task, onnx.ModelProto], onnx.ModelProto]
AttrData = int | float | str | Array | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | Opaque


@dataclasses.dataclass(frozen=True, slots=True)
class ValueType:
    """What shape inference found out about a value; None where it could not. ``dims`` are those of a known rank,
    ``symbols`` the names of those that are open, "" for the others, ``narrow`` is the type of one that the graph has as
    bytes."""

    rank: int | None
    dtype: DType | None
    dims: tuple[int | None, ...] = ()
    narrow: Narrow | None = None
    symbols: tuple[str, ...] = ()


def read_model(path: Path) -> onnx.ModelProto:
    """The parsed model, its local functions inlined, external data still outside. Raises ModelError."""
    return parsed(read_model_file(path), path)


def parsed(data: bytes, path: Path) -> onnx.ModelProto:
    """The same of what a file of that name holds."""
    again = "export or download the model again"
    if not data:
        raise ModelError(f"{path}: it is empty; {again}")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf has no common base for what its parsers raise
        raise ModelError(f"{path}: is not an ONNX model, or a truncated one ({error}); {again}") from None
    if not _is_text(model):
        raise ModelError(f"{path}: a name in the model is not UTF-8 text; {again}")
    if not model.HasField("graph") or not model.graph.output:
        raise ModelError(f"{path}: holds no ONNX graph with outputs ({bytes_str(len(data))} read); {again}")
    try:
        return inlined(model)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def inlined(model: onnx.ModelProto, run: RunTask | None = None) -> onnx.ModelProto:
    """The model without local functions, which ``run`` inlines. Raises ModelError, also for more than `MAX_NODES`."""
    if model.functions:
        try:
            check_growth(model)
            model = (run or run_apart)("inline", model)
        except ModelError as error:
            raise ModelError(
                f"the model's local functions cannot be inlined: {error}; export it without them, or smaller"
            ) from None
    if len(model.graph.node) > MAX_NODES:
        raise ModelError(f"the model has {len(model.graph.node)} nodes, vkconv takes {MAX_NODES}; simplify it")
    return model


def _is_text(model: onnx.ModelProto) -> bool:
    """Whether every name is text: protobuf gives bytes, or raises, for one that is not UTF-8."""
    graph = model.graph
    try:
        names: list[object] = [graph.name, model.producer_name, model.producer_version]
        names += [text for prop in model.metadata_props for text in (prop.key, prop.value)]
        names += [entry.domain for entry in model.opset_import]
        names += [info.name for info in (*graph.input, *graph.output)]
        names += [dim.dim_param for info in graph.input for dim in info.type.tensor_type.shape.dim]
        for tensor in graph.initializer:
            names += [tensor.name, *(text for entry in tensor.external_data for text in (entry.key, entry.value))]
        for node in graph.node:
            names += [node.name, node.op_type, node.domain, *node.input, *node.output]
            names += [attribute.name for attribute in node.attribute]
    except UnicodeDecodeError:
        return False
    return all(isinstance(name, str) for name in names)


def dtype_of(elem_type: int, verb: str) -> DType:
    """vkconv's element type for an ONNX one; RefusedError saying ``verb`` and the type where there is none."""
    if elem_type in DTYPES:
        return DTYPES[elem_type]
    if elem_type not in onnx.TensorProto.DataType.values():
        raise RefusedError(f"it {verb} element type number {elem_type}, which onnx {onnx.__version__} does not define")
    name = onnx.TensorProto.DataType.Name(elem_type).lower()
    hint = _F64_HINT if elem_type == onnx.TensorProto.DOUBLE else ""
    raise RefusedError(f"it {verb} {name}; vkconv has {', '.join(DTYPES.values())}{hint}")


def stored_as(elem_type: int, verb: str) -> DType:
    """What a graph has an ONNX type as: `dtype_of`, and the bytes of one that no kernel has."""
    return NARROW[elem_type].stored if elem_type in NARROW else dtype_of(elem_type, verb)


def narrow_types(model: onnx.ModelProto) -> bool:
    """Whether the model has anything of a type that no kernel has."""
    graph = model.graph
    found = {tensor.data_type for tensor in graph.initializer}
    found |= {info.type.tensor_type.elem_type for info in (*graph.input, *graph.output)}
    for attribute in (a for node in graph.node for a in node.attribute):
        if attribute.type == onnx.AttributeProto.TENSOR:
            found.add(attribute.t.data_type)
        elif attribute.name in ("to", "output_dtype"):
            found.add(attribute.i)
    return not found.isdisjoint(NARROW)


def read_tensor(tensor: onnx.TensorProto, folder: Path, what: str) -> Array:
    """The array of a tensor, with external data. Raises ModelError, or RefusedError for its type."""
    dtype = stored_as(tensor.data_type, "holds")
    shape = tuple(tensor.dims)
    if any(d < 0 for d in shape):
        raise ModelError(f"{what} has a negative dimension in its shape {shape}; the file is damaged")
    if problem := shape_problem(shape, dtype):
        raise ModelError(f"{what} cannot have the shape it declares: {problem}; the file is damaged")
    external = tensor.data_location == onnx.TensorProto.EXTERNAL
    narrow = NARROW.get(tensor.data_type)
    if external and narrow and narrow.per_byte > 1:
        packed = read_external(tensor, folder, DType.U8, (-(-math.prod(shape) // narrow.per_byte),), what)
        return narrow.unpacked(packed, shape)
    array = read_external(tensor, folder, dtype, shape, what) if external else _read_inline(tensor, dtype, shape, what)
    if dtype is DType.BOOL and array.size and int(array.view(np.uint8).max()) > 1:
        raise ModelError(f"{what} is bool and holds bytes other than 0 and 1; the file is damaged")
    return array


# Where a tensor may have its elements, by its type.
_FIELDS = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")


def _read_inline(tensor: onnx.TensorProto, dtype: DType, shape: tuple[int, ...], what: str) -> Array:
    held = [name for name in _FIELDS if getattr(tensor, name)]
    if len(held) > 1:
        raise ModelError(
            f"{what} has its elements twice, as {' and as '.join(held)}; ONNX wants one: leave one of them"
        )
    try:
        array = onnx.numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError) as error:
        raise ModelError(f"{what} of shape {shape} does not hold what it declares ({error})") from None
    narrow = NARROW.get(tensor.data_type)
    return narrow.to_stored(np.asarray(array)) if narrow else np.asarray(array, dtype.numpy)


def read_external(tensor: onnx.TensorProto, folder: Path, dtype: DType, shape: tuple[int, ...], what: str) -> Array:
    """An array of this type and shape from the file beside the model that a tensor names. Raises ModelError."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    try:
        file = (folder / location).resolve()
    except (ValueError, RuntimeError) as error:  # a NUL in the name, links in a circle
        raise ModelError(f"{what}: its external data {location!r} names no file ({error})") from None
    if not location or not file.is_relative_to(folder.resolve()):
        raise ModelError(
            f"{what}: its external data {location!r} lies outside the model's folder {folder}; move it there"
        )
    if problem := not_a_file(file):
        raise ModelError(f"{what}: its external data file {file}: {problem}; it belongs beside the model")
    if others := _other_names(file):
        raise ModelError(
            f"{what}: its external data file {file} has {others} other names (hard links) outside its folder; copy it, "
            "so that it is a file of its own"
        )
    nbytes = math.prod(shape) * dtype.nbytes
    try:
        offset = int(entries.get("offset", "0"))
        length = int(entries.get("length", str(nbytes)))
    except ValueError:
        raise ModelError(f"{what}: external data offset or length is not a number ({entries})") from None
    try:
        return _read_from(file, offset, length, nbytes, dtype, shape, what)
    except OSError as error:
        raise ModelError(f"{what}: its external data file {file} cannot be read ({error.strerror})") from None


def _other_names(file: Path) -> int:
    """How many names a file has that are not in its folder: it may be any file of the user's."""
    try:
        found = file.stat()
        if found.st_nlink == 1:
            return 0
        return found.st_nlink - sum(os.path.samestat(found, path.lstat()) for path in file.parent.iterdir())
    except OSError:  # it is told when the file is read
        return 0


def _read_from(
    path: Path, offset: int, length: int, nbytes: int, dtype: DType, shape: tuple[int, ...], what: str
) -> Array:
    if length != nbytes:
        raise ModelError(f"{what}: {length} external bytes declared, shape {shape} of {dtype} needs {nbytes}")
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if offset < 0 or offset + length > size:
            raise ModelError(f"{what}: bytes {offset} to {offset + length} wanted from {path}, which has {size}")
        try:
            return read_array(file, offset, shape, dtype)
        except InputError as error:
            raise ModelError(f"{what}: its external data in {path} cannot be read: {error}") from None


def read_attribute(attribute: onnx.AttributeProto, folder: Path, what: str) -> AttrData:
    """An attribute's value; kinds that no rule can use come as `Opaque`."""
    kinds = onnx.AttributeProto
    match attribute.type:
        case kinds.INT:
            return int(attribute.i)
        case kinds.FLOAT:
            return float(attribute.f)
        case kinds.STRING:
            return attribute.s.decode("utf-8", "replace")
        case kinds.TENSOR:
            return read_tensor(attribute.t, folder, f"attribute {attribute.name!r} of {what}")
        case kinds.INTS:
            return tuple(int(i) for i in attribute.ints)
        case kinds.FLOATS:
            return tuple(float(f) for f in attribute.floats)
        case kinds.STRINGS:
            return tuple(s.decode("utf-8", "replace") for s in attribute.strings)
        case kinds.GRAPH | kinds.GRAPHS:
            return Opaque("a subgraph")
        case other:
            return Opaque(f"of kind {other}")


def infer_types(model: onnx.ModelProto, run: RunTask | None = None) -> dict[str, ValueType]:
    """Ranks and element types of as many values as `infer_infos` can tell."""
    return {name: _value_type(info) for name, info in infer_infos(model, run).items()}


def infer_infos(model: onnx.ModelProto, run: RunTask | None = None) -> dict[str, onnx.ValueInfoProto]:
    """What ONNX's own shape inference can tell of values; ``run`` is who does it.

    The model's own ``value_info`` is not believed, and large constants go in as types, not values. Raises
    ModelError where inference neither ends nor fails, as happens with damaged models.
    """
    slim = onnx.ModelProto(ir_version=max(8, model.ir_version), opset_import=model.opset_import)
    slim.graph.name = "types"
    initializers = {t.name for t in model.graph.initializer}
    slim.graph.input.extend(i for i in model.graph.input if i.name not in initializers)
    for dim in (d for i in slim.graph.input for d in i.type.tensor_type.shape.dim if d.dim_value < 0):
        dim.Clear()  # some exporters write -1 for an open dimension, and ONNX aborts where a node slices it
    for tensor in model.graph.initializer:
        if _is_small(tensor):
            slim.graph.initializer.append(tensor)
        else:
            slim.graph.input.append(_typed(tensor.name, tensor))
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if contrib_kept.kept(node, constants):
            like, operands = contrib_kept.stand_in(node, constants)
            slim.graph.node.extend(like)
            slim.graph.input.extend(operands)
            continue
        tensors = [a.t for a in node.attribute if a.type == onnx.AttributeProto.TENSOR]
        if node.op_type == "Constant" and tensors and node.output and not _is_small(tensors[0]):
            slim.graph.input.append(_typed(node.output[0], tensors[0]))
        else:
            slim.graph.node.append(node)
    for output in model.graph.output:
        slim.graph.output.add().name = output.name
    graph = (run or run_apart)("infer", slim).graph
    return {info.name: info for info in worker.value_infos(graph)} | {
        t.name: _typed(t.name, t) for t in graph.initializer
    }


def run_apart(task: worker.Task, model: onnx.ModelProto) -> onnx.ModelProto:
    """The model after a task of `vkconv.graph.onnx.worker`, in a process of its own (about 0.3 s): ONNX's C++ code
    ends the process, or never ends, for some damaged models.

    Raises ModelError saying how the task failed.
    """
    # The path of imports may have been made by hand; the file is named, so that nothing of vkconv is imported.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-P", worker.__file__, task]
    try:
        done = subprocess.run(
            command, input=model.SerializeToString(), capture_output=True, timeout=_TIMEOUT_S, env=environment
        )
    except subprocess.TimeoutExpired:
        raise ModelError(f"onnx did not finish to {task} it within {_TIMEOUT_S} s; the file may be damaged") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"no process could be started to {task} it ({error})") from None
    if done.returncode == worker.REFUSED:
        raise ModelError(done.stderr.decode("utf-8", "replace").strip())
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        how = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit code {done.returncode}, {last}"
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        or_memory = "" if limit == resource.RLIM_INFINITY else f", or {bytes_str(limit)} of memory (ulimit -v) too few"
        raise ModelError(f"onnx broke down when asked to {task} it ({how}); the file may be damaged{or_memory}")
    result = onnx.ModelProto()
    result.ParseFromString(done.stdout)
    return result


def _value_type(info: onnx.ValueInfoProto) -> ValueType:
    tensor = info.type.tensor_type
    dims = tuple(d.dim_value if d.dim_value > 0 else None for d in tensor.shape.dim)
    narrow = NARROW.get(tensor.elem_type)
    dtype = narrow.stored if narrow else DTYPES.get(tensor.elem_type)
    symbols = tuple(d.dim_param for d in tensor.shape.dim)
    return ValueType(len(dims) if tensor.HasField("shape") else None, dtype, dims, narrow, symbols)


def _is_small(tensor: onnx.TensorProto) -> bool:
    external = tensor.data_location == onnx.TensorProto.EXTERNAL
    return not external and math.prod(tensor.dims) <= _SMALL_ELEMENTS


def _typed(name: str, tensor: onnx.TensorProto) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims))
