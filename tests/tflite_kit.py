"""TensorFlow Lite models made for tests, and what LiteRT makes of them."""

import dataclasses

import flatbuffers
import numpy as np
import tflite

TYPES = {"f32": 0, "f16": 1, "i32": 2, "u8": 3, "i64": 4, "bool": 6, "i16": 7, "i8": 9, "resource": 13, "i4": 17}
_NUMPY = {np.dtype(k): v for k, v in (("f4", 0), ("f2", 1), ("i4", 2), ("u1", 3), ("i8", 4), ("?", 6), ("i1", 9))}
# The first version of an operator is not always there.
_VERSIONS = {"BROADCAST_TO": 2}


@dataclasses.dataclass
class T:
    """A tensor: its shape and type, or its values; scales with zero points along an axis; a signature of open
    dimensions."""

    shape: tuple = ()
    dtype: str = "f32"
    data: object = None
    scale: object = None
    zero: object = 0
    axis: int = 0
    signature: tuple = ()


def const(data, **more):
    array = np.asarray(data)
    return T(array.shape, "", array, **more)


def _vector(b, start, numbers, prepend):
    start(b, len(numbers))
    for number in reversed(numbers):
        prepend(number)
    return b.EndVector()


def _table(b, name, **fields):
    getattr(tflite, f"{name}Start")(b)
    for field, value in fields.items():
        getattr(tflite, f"{name}Add{field}")(b, value)
    return getattr(tflite, f"{name}End")(b)


def _ints(b, name, numbers, wide=False):
    put = b.PrependInt64 if wide else b.PrependInt32
    return _vector(b, getattr(tflite, f"{name}Vector"), numbers, put)


def make(tensors, ops, inputs, outputs):
    """The bytes of a model. ``tensors`` are `T` by name, ``ops`` are (operator, inputs, outputs[, options, fields]),
    names separated by blanks with ``-`` for an absent one; an operator that is not the schema's own is a custom one,
    whose ``options`` are bytes."""
    b = flatbuffers.Builder(1024)
    index = {name: i for i, name in enumerate(tensors)} | {"-": -1}
    buffers, made = [_table(b, "Buffer")], []
    for name, t in tensors.items():
        fields = {"Name": b.CreateString(name), "Shape": _ints(b, "TensorStartShape", [int(d) for d in t.shape])}
        fields["Type"] = TYPES[t.dtype] if t.dtype else _NUMPY[np.asarray(t.data).dtype]
        if t.signature:
            fields["ShapeSignature"] = _ints(b, "TensorStartShapeSignature", t.signature)
        if t.data is not None:
            raw = t.data if isinstance(t.data, bytes) else np.asarray(t.data).tobytes()
            fields["Buffer"] = len(buffers)
            buffers.append(_table(b, "Buffer", Data=b.CreateByteVector(raw)))
        if t.scale is not None:
            scale = np.atleast_1d(np.asarray(t.scale, np.float32))
            zero = np.broadcast_to(np.atleast_1d(t.zero), scale.shape)
            scales = _vector(b, tflite.QuantizationParametersStartScaleVector, scale.tolist(), b.PrependFloat32)
            zeros = _ints(b, "QuantizationParametersStartZeroPoint", [int(z) for z in zero], wide=True)
            more = {"Scale": scales, "ZeroPoint": zeros, "QuantizedDimension": t.axis}
            fields["Quantization"] = _table(b, "QuantizationParameters", **more)
        made.append(_table(b, "Tensor", **fields))
    codes, operators = [], []
    for name, reads, writes, *rest in ops:
        number = getattr(tflite.BuiltinOperator, name, tflite.BuiltinOperator.CUSTOM)
        fields = {"OpcodeIndex": len(codes)}
        custom = {"CustomCode": b.CreateString(name)} if number == tflite.BuiltinOperator.CUSTOM else {}
        more = custom | {"DeprecatedBuiltinCode": min(number, 127), "Version": _VERSIONS.get(name, 1)}
        codes.append(_table(b, "OperatorCode", BuiltinCode=number, **more))
        fields["Inputs"] = _ints(b, "OperatorStartInputs", [index[v] for v in reads.split()])
        fields["Outputs"] = _ints(b, "OperatorStartOutputs", [index[v] for v in writes.split()])
        if custom and rest:
            fields["CustomOptions"] = b.CreateByteVector(rest[0])
        elif rest:
            given = dict(rest[1]) if len(rest) > 1 else {}
            for field, value in given.items():
                if isinstance(value, str):
                    given[field] = b.CreateString(value)
                if isinstance(value, tuple):
                    given[field] = _ints(b, f"{rest[0]}Start{field}", value)
            fields["BuiltinOptionsType"] = getattr(tflite.BuiltinOptions, rest[0])
            fields["BuiltinOptions"] = _table(b, rest[0], **given)
        operators.append(_table(b, "Operator", **fields))

    def offsets(start, tables):
        return _vector(b, start, tables, b.PrependUOffsetTRelative)

    graph = {
        "Tensors": offsets(tflite.SubGraphStartTensorsVector, made),
        "Inputs": _ints(b, "SubGraphStartInputs", [index[v] for v in inputs.split()]),
        "Outputs": _ints(b, "SubGraphStartOutputs", [index[v] for v in outputs.split()]),
        "Operators": offsets(tflite.SubGraphStartOperatorsVector, operators),
    }
    subgraph = _table(b, "SubGraph", **graph)
    model = {
        "OperatorCodes": offsets(tflite.ModelStartOperatorCodesVector, codes),
        "Subgraphs": offsets(tflite.ModelStartSubgraphsVector, [subgraph]),
        "Buffers": offsets(tflite.ModelStartBuffersVector, buffers),
        "Description": b.CreateString("made for a test"),
    }
    b.Finish(_table(b, "Model", Version=3, **model), b"TFL3")
    return bytes(b.Output())


def litert(data, inputs, plain=True):
    """Outputs by name of LiteRT's plain kernels for arrays by name; those of XNNPACK too where not ``plain``."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    resolver = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES if plain else OpResolverType.AUTO
    run = Interpreter(model_content=data, experimental_op_resolver_type=resolver, num_threads=1)
    for detail in run.get_input_details():
        run.resize_tensor_input(detail["index"], inputs[detail["name"]].shape)
    run.allocate_tensors()
    for detail in run.get_input_details():
        run.set_tensor(detail["index"], inputs[detail["name"]])
    run.invoke()
    return {detail["name"]: run.get_tensor(detail["index"]) for detail in run.get_output_details()}
