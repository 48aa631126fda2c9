"""What a ``.tflite`` file holds, as plain data. The FlatBuffers library checks nothing: lengths and indices are checked
here before anything is made of them. It is Python alone, so that the worst a damaged file can do there is to raise."""

import dataclasses
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import tflite

from vkconv.core import MAX_NODES, MAX_RANK, Array, ModelError, shape_problem, shape_str, short
from vkconv.core import DType as D

# Tensors of a model; the largest published ones have a tenth.
MAX_TENSORS = 16 * MAX_NODES
_MAX_NAME = 4_096
WITHOUT_OUTPUT = ("ASSIGN_VARIABLE", "CALL_ONCE")
_MAX_OPERANDS = 64 * MAX_NODES
# What FlatBuffers and numpy raise where offsets lead out of the file.
_DAMAGED = (struct.error, IndexError, ValueError, TypeError, OverflowError, AttributeError, UnicodeDecodeError)
_Value = TypeVar("_Value")

DTYPES: dict[int, D] = {
    tflite.TensorType.FLOAT32: D.F32,
    tflite.TensorType.FLOAT16: D.F16,
    tflite.TensorType.BFLOAT16: D.BF16,
    tflite.TensorType.INT64: D.I64,
    tflite.TensorType.INT32: D.I32,
    tflite.TensorType.UINT32: D.U32,
    tflite.TensorType.INT16: D.I16,
    tflite.TensorType.UINT16: D.U16,
    tflite.TensorType.INT8: D.I8,
    tflite.TensorType.UINT8: D.U8,
    tflite.TensorType.BOOL: D.BOOL,
}


def _names(kind: type) -> dict[int, str]:
    return {value: name for name, value in vars(kind).items() if isinstance(value, int)}


_TYPE_NAMES, _OP_NAMES, _OPTIONS = (
    _names(kind) for kind in (tflite.TensorType, tflite.BuiltinOperator, tflite.BuiltinOptions)
)


@dataclasses.dataclass(frozen=True, slots=True)
class Quantization:
    """``real = (stored - zero) * scale``, one of each for the tensor or one for each index along ``axis``."""

    scale: Array
    zero: Array
    axis: int

    @property
    def per_tensor(self) -> bool:
        return self.scale.size == 1


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a subgraph. ``dims`` has None where the file leaves a dimension open; ``dtype`` is None for a type
    that vkconv does not have, which ``type_name`` names. ``data`` is a constant's, as stored."""

    name: str
    dims: tuple[int | None, ...]
    dtype: D | None
    type_name: str
    quantization: Quantization | None
    data: Array | None
    is_variable: bool
    sparse: bool

    @property
    def rank(self) -> int:
        return len(self.dims)


@dataclasses.dataclass(frozen=True, slots=True)
class Operator:
    """One operator: ``options`` is its table, None where the file has none, ``custom`` the bytes of one that is not
    TensorFlow Lite's own. An absent operand is -1. ``variable`` is the one that a VAR_HANDLE stands for."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Any
    custom: bytes | None
    variable: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """``initial`` are the values with which variables begin, by their names."""

    description: str
    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    nbytes: int
    initial: Mapping[str, Array] = dataclasses.field(default_factory=dict)


def read(data: bytes) -> Model:
    """The first subgraph of a model. Raises ModelError for what is no whole TensorFlow Lite model."""
    if not data:
        raise ModelError("the file is empty; convert or download the model again")
    if len(data) < 8 or data[4:8] != b"TFL3":
        raise ModelError("is not a TensorFlow Lite model (bytes 4 to 7 are not TFL3); name a .tflite file")
    try:
        return _Reader(data).model()
    except _DAMAGED as error:
        raise ModelError(f"is damaged or truncated ({error}); convert or download the model again") from None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._model = tflite.Model.GetRootAsModel(data, 0)
        self._operands = 0

    def model(self) -> Model:
        model = self._model
        subgraphs = self._count(model.SubgraphsLength(), 4, "subgraphs")
        if not subgraphs:
            raise ModelError("holds no subgraph; convert the model again")
        graph = model.Subgraphs(0)
        codes = [self._code(i) for i in range(self._count(model.OperatorCodesLength(), 4, "operator codes", MAX_NODES))]
        count = self._count(graph.TensorsLength(), 4, "tensors", MAX_TENSORS)
        tensors = tuple(self._tensor(graph.Tensors(i)) for i in range(count))
        count_ops = self._count(graph.OperatorsLength(), 4, "operators", MAX_NODES)
        operators = tuple(self._operator(graph.Operators(i), codes, count) for i in range(count_ops))
        inputs = self._indices(graph.InputsLength, graph.InputsAsNumpy, count, absent=False)
        outputs = self._indices(graph.OutputsLength, graph.OutputsAsNumpy, count, absent=False)
        if not outputs:
            raise ModelError("its first subgraph has no outputs; convert the model again")
        initial = self._initial(model, operators, codes)
        return Model(self._text(model, 10), tensors, operators, inputs, outputs, len(self._data), initial)

    def _initial(self, model: Any, operators: tuple[Operator, ...], codes: list[str]) -> dict[str, Array]:
        """What the subgraphs that are called once assign to variables: constants."""
        found: dict[str, Array] = {}
        for op in (op for op in operators if op.name == "CALL_ONCE"):
            index = op.options.InitSubgraphIndex() if op.options is not None else 0
            if not 0 < index < model.SubgraphsLength():
                raise ModelError(f"calls subgraph {index} once, of {model.SubgraphsLength()}; the file is damaged")
            graph = model.Subgraphs(index)
            tensors = self._count(graph.TensorsLength(), 4, "tensors", MAX_TENSORS)
            count = self._count(graph.OperatorsLength(), 4, "operators", MAX_NODES)
            inner = [self._operator(graph.Operators(i), codes, tensors) for i in range(count)]
            named = {o.outputs[0]: o.variable for o in inner if o.name == "VAR_HANDLE"}
            for o in (o for o in inner if o.name == "ASSIGN_VARIABLE" and len(o.inputs) == 2):
                value = self._tensor(graph.Tensors(o.inputs[1])).data if o.inputs[1] >= 0 else None
                if o.inputs[0] in named and value is not None:
                    found[named[o.inputs[0]]] = value
        return found

    def _count(self, count: int, each_bytes: int, what: str, most: int = 1 << 31) -> int:
        if count * each_bytes > len(self._data):
            raise ModelError(f"says that it has {count} {what}, of which {len(self._data)} bytes have no room")
        if count > most:
            raise ModelError(f"has {count} {what}, vkconv takes {most}; simplify it")
        return count

    def _text(self, table: Any, slot: int) -> str:
        """The text in a slot of a table: FlatBuffers copies it whatever its length, so that this is looked at first."""
        offset = table._tab.Offset(slot)
        if not offset:
            return ""
        at = table._tab.Indirect(offset + table._tab.Pos)
        length = struct.unpack_from("<I", self._data, at)[0]
        if length > _MAX_NAME or at + 4 + length > len(self._data):
            raise ModelError(f"a name in it has {length} characters, at most {_MAX_NAME} can be; the file is damaged")
        return self._data[at + 4 : at + 4 + length].decode("utf-8")

    def _code(self, i: int) -> str:
        """The name of an operator; files of before 2020 have its number in a byte."""
        code = self._model.OperatorCodes(i)
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        if number == tflite.BuiltinOperator.CUSTOM:
            return "custom " + self._text(code, 6)
        return _OP_NAMES.get(number, f"number {number}")

    def _indices(
        self, length: Callable[[], int], values: Callable[[], Any], tensors: int, absent: bool
    ) -> tuple[int, ...]:
        """Numbers of tensors."""
        self._operands += self._count(length(), 4, "operands")
        if self._operands > _MAX_OPERANDS:
            raise ModelError(f"its operators have more than {_MAX_OPERANDS} operands; the file is damaged")
        found = tuple(int(v) for v in values()) if length() else ()
        for index in found:
            if not (-1 if absent else 0) <= index < tensors:
                raise ModelError(f"an operand is tensor {index}, of {tensors} that there are; the file is damaged")
        return found

    def _operator(self, op: Any, codes: list[str], tensors: int) -> Operator:
        if op.OpcodeIndex() >= len(codes):
            raise ModelError(f"an operator has code {op.OpcodeIndex()}, of {len(codes)}; the file is damaged")
        inputs = self._indices(op.InputsLength, op.InputsAsNumpy, tensors, absent=True)
        outputs = self._indices(op.OutputsLength, op.OutputsAsNumpy, tensors, absent=False)
        name = codes[op.OpcodeIndex()]
        if not outputs and name not in WITHOUT_OUTPUT:
            raise ModelError(f"a {name} operator has no output; the file is damaged")
        custom = None
        if not op.CustomOptionsIsNone():
            self._count(op.CustomOptionsLength(), 1, "bytes of options")
            custom = bytes(op.CustomOptionsAsNumpy()[:64])
        options = self._options(op)
        variable = ""
        if name == "VAR_HANDLE" and options is not None:
            variable = "/".join(filter(None, (self._text(options, 4), self._text(options, 6))))
        return Operator(name, inputs, outputs, options, custom, variable)

    @staticmethod
    def _options(op: Any) -> Any:
        """The table of options, of the class that its type names."""
        table, kind = op.BuiltinOptions(), _OPTIONS.get(op.BuiltinOptionsType(), "NONE")
        if table is None or kind == "NONE":
            return None
        options = getattr(tflite, kind)()
        options.Init(table.Bytes, table.Pos)
        return options

    def _tensor(self, tensor: Any) -> Tensor:
        name, number = self._text(tensor, 10), tensor.Type()
        what = f"tensor {short(name)}"
        self._count(tensor.ShapeLength(), 4, "dimensions", MAX_RANK)
        shape = tuple(int(d) for d in tensor.ShapeAsNumpy()) if tensor.ShapeLength() else ()
        dims: tuple[int | None, ...] = shape
        if tensor.ShapeSignatureLength() == len(shape) and shape:
            signature = [int(d) for d in tensor.ShapeSignatureAsNumpy()]
            dims = tuple(None if s < 0 else d for d, s in zip(shape, signature, strict=True))
        if any(d < 0 for d in shape):
            raise ModelError(f"{what} has a negative dimension ({shape}); the file is damaged")
        dtype = DTYPES.get(number)
        type_name = _TYPE_NAMES.get(number, f"number {number}").lower()
        if problem := shape_problem(shape, dtype or D.I8):
            raise ModelError(f"{what} cannot have the shape {shape_str(shape)}: {problem}; the file is damaged")
        sparsity = tensor.Sparsity()
        four_bits = number == tflite.TensorType.INT4
        data = self._constant(tensor, shape, dtype, four_bits, what) if sparsity is None else None
        if sparsity is not None:
            data = _dense(self, tensor, sparsity, shape, dtype, what)
        if four_bits and data is not None:
            dtype = D.I8
        quantization = self._quantization(tensor.Quantization(), dims, what)
        variable = bool(tensor.IsVariable())
        return Tensor(name, dims, dtype, type_name, quantization, data, variable, sparsity is not None)

    def _bytes(self, tensor: Any, what: str) -> npt.NDArray[np.uint8] | None:
        """The bytes of a constant; None for what an operator makes."""
        model, index = self._model, tensor.Buffer()
        if index == 0:
            return None
        if index >= self._count(model.BuffersLength(), 4, "buffers"):
            raise ModelError(f"{what} is in buffer {index}, of {model.BuffersLength()}; the file is damaged")
        buffer = model.Buffers(index)
        if buffer.Offset() > 1:  # behind the FlatBuffer, in files of more than 2 GB
            begin, size = buffer.Offset(), buffer.Size()
            if begin + size > len(self._data):
                raise ModelError(f"{what} ends at byte {begin + size} of {len(self._data)}; the file is truncated")
            return np.frombuffer(self._data, np.uint8, size, begin)
        if buffer.DataIsNone() or not buffer.DataLength():
            return None
        self._count(buffer.DataLength(), 1, "bytes of a constant")
        return np.asarray(buffer.DataAsNumpy(), np.uint8)

    def _constant(
        self, tensor: Any, shape: tuple[int, ...], dtype: D | None, four_bits: bool, what: str
    ) -> Array | None:
        raw, count = self._bytes(tensor, what), math.prod(shape)
        if raw is None or (dtype is None and not four_bits):
            return None
        due = (count + 1) // 2 if four_bits else count * (dtype or D.I8).nbytes
        if raw.size != due:
            raise ModelError(f"{what} of shape {shape_str(shape)} holds {raw.size} bytes, {due} are due; it is damaged")
        if four_bits:  # the low half of a byte comes first
            halves = np.stack([raw & 15, raw >> 4], -1).reshape(-1)[:count].astype(np.int8)
            return np.where(halves > 7, halves - 16, halves).astype(np.int8).reshape(shape)
        assert dtype is not None
        if dtype is D.BOOL and raw.size and int(raw.max()) > 1:
            raise ModelError(f"{what} is bool and holds bytes other than 0 and 1; the file is damaged")
        # Copied, since nothing says where in the file elements begin.
        array: Array = np.frombuffer(raw.tobytes(), dtype.numpy).reshape(shape)
        return array

    def _quantization(self, table: Any, dims: tuple[int | None, ...], what: str) -> Quantization | None:
        if table is None or not table.ScaleLength():
            return None
        count, axis = self._count(table.ScaleLength(), 4, "scales"), table.QuantizedDimension()
        scale = np.asarray(table.ScaleAsNumpy(), np.float32)
        zeros = self._count(table.ZeroPointLength(), 8, "zero points")
        zero = np.asarray(table.ZeroPointAsNumpy() if zeros else np.zeros(count), np.int64)
        if zero.size == 1:
            zero = np.broadcast_to(zero, scale.shape)
        if zero.size != count:
            raise ModelError(f"{what} has {count} scales and {zero.size} zero points; the file is damaged")
        if count > 1 and not (0 <= axis < len(dims) and dims[axis] == count):
            raise ModelError(f"{what} of {len(dims)} dimensions has {count} scales along axis {axis}; it is damaged")
        return Quantization(scale, zero, axis)

    def _vector(self, table: Any, kind: int) -> Array:
        """The numbers of an index vector of sparsity, whatever their width."""
        widths = {1: tflite.Int32Vector, 2: tflite.Uint16Vector, 3: tflite.Uint8Vector}
        if table is None or kind not in widths:
            raise ModelError("a sparse tensor has no indices; the file is damaged")
        vector = widths[kind]()
        vector.Init(table.Bytes, table.Pos)
        self._count(vector.ValuesLength(), 1, "indices")
        return np.asarray(vector.ValuesAsNumpy() if vector.ValuesLength() else np.empty(0), np.int64)


def _dense(reader: _Reader, tensor: Any, table: Any, shape: tuple[int, ...], dtype: D | None, what: str) -> Array:
    """A sparse constant with its zeros: dimensions in the order of ``traversal``, those of blocks behind the others,
    each dense or in compressed rows (TACO's format, as the schema cites it)."""
    wrong = f"{what} is sparse in a way that does not fit its shape {shape_str(shape)}; the file is damaged"
    raw = reader._bytes(tensor, what)
    levels = reader._count(table.DimMetadataLength(), 4, "levels", 2 * MAX_RANK)
    blocks = [int(v) for v in table.BlockMapAsNumpy()] if table.BlockMapLength() else []
    order = [int(v) for v in table.TraversalOrderAsNumpy()] if table.TraversalOrderLength() else []
    rank = len(shape)
    if raw is None or dtype is None or levels != rank + len(blocks) or sorted(order) != list(range(levels)):
        raise ModelError(wrong)
    if math.prod(shape) * dtype.nbytes > 64 * len(reader._data) + (1 << 20):
        raise ModelError(f"{what} would be {math.prod(shape)} elements of a file of {len(reader._data)} bytes")
    values = np.frombuffer(raw.tobytes()[: raw.size // dtype.nbytes * dtype.nbytes], dtype.numpy)
    parents, sizes = np.zeros((1, 0), np.int64), [0] * levels
    position = np.zeros(1, np.int64)
    for level in range(levels):
        data = table.DimMetadata(level)
        if data.Format() == tflite.DimensionType.DENSE:
            size = data.DenseSize()
            if not size > 0 or len(parents) * size > 64 * len(reader._data) + (1 << 20):
                raise ModelError(wrong)
            sizes[level] = size
            own = np.tile(np.arange(size), len(parents))
            kept = np.repeat(np.arange(len(parents)), size)
            position = np.repeat(position, size) * size + own
        else:
            segments = reader._vector(data.ArraySegments(), data.ArraySegmentsType())
            indices = reader._vector(data.ArrayIndices(), data.ArrayIndicesType())
            counts = np.diff(segments)
            whole = segments.size > position.max(initial=0) + 1 and not (counts < 0).any()
            if not whole or segments[0] != 0 or segments[-1] != indices.size or len(position) != counts.size:
                raise ModelError(wrong)
            kept = np.repeat(np.arange(len(parents)), counts)
            own, position = indices, np.arange(indices.size)
        parents = np.concatenate([parents[kept], own[:, None]], axis=1)
    if len(parents) != values.size:
        raise ModelError(wrong)
    place = [parents[:, order.index(axis)] for axis in range(levels)]
    for b, axis in enumerate(blocks):
        if not 0 <= axis < rank:
            raise ModelError(wrong)
        place[axis] = place[axis] * max(sizes[order.index(rank + b)], 1) + place[rank + b]
    for axis in range(rank):
        if values.size and not (place[axis].min() >= 0 and place[axis].max() < shape[axis]):
            raise ModelError(wrong)
    made = np.zeros(shape, dtype.numpy)
    made[tuple(place[:rank])] = values
    return made


def guarded(what: str, read_it: Callable[[], _Value]) -> _Value:
    """What reading gives; ModelError where FlatBuffers finds no such thing in the file."""
    try:
        return read_it()
    except _DAMAGED as error:
        raise ModelError(f"{what} is damaged ({error}); convert or download the model again") from None


def words(data: bytes) -> Iterator[int]:
    """Little-endian 32-bit integers, as C structs of options hold them."""
    return (v for (v,) in struct.iter_unpack("<i", data[: len(data) // 4 * 4]))
