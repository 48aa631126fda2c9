"""ExecuTorch programs made for tests by the FlatBuffers library, from the schemas: schema/program.fbs and
backends/vulkan/serialization/schema.fbs of ExecuTorch 1.5.1."""

import dataclasses
import struct

import flatbuffers
import ml_dtypes
import numpy as np

from vkconv.check.reference import reference_outputs
from vkconv.graph import load_model

PROGRAM_TYPES = {"u8": 0, "i8": 1, "i16": 2, "i32": 3, "i64": 4, "f16": 5, "f32": 6, "f64": 7, "bool": 11, "bf16": 15}
VULKAN_TYPES = {"bool": 0, "u8": 1, "i8": 2, "i32": 3, "f16": 4, "f32": 5, "f64": 6, "i64": 7}
NUMPY = {"u8": "u1", "i8": "i1", "i16": "i2", "i32": "i4", "i64": "i8", "f16": "f2", "f32": "f4", "bool": "?"}
NUMPY |= {"bf16": ml_dtypes.bfloat16, "f64": "f8"}
BY_NAME = (1 << 64) - 1


@dataclasses.dataclass
class T:
    """A tensor: shape and type, or values. ``memory`` is (area, byte); ``order`` that of its dimensions in memory;
    ``named`` the key of data that have one; ``staging`` the type that a delegate's tensor goes in and out as;
    ``external`` that its data are elsewhere."""

    shape: tuple = ()
    dtype: str = "f32"
    data: object = None
    memory: object = None
    order: object = None
    named: str = ""
    staging: str = ""
    external: bool = False


def const(data, dtype="f32", **more):
    array = np.asarray(data, NUMPY[dtype])
    return T(array.shape, dtype, array, **more)


@dataclasses.dataclass
class Text:
    text: str


class Size:
    """A size that the program finds out."""


# ---- FlatBuffers: a table is a dict of fields by slot


def vector(kind, numbers):
    return ("vector", kind, tuple(numbers))


def _write(b, given):
    """Where something lies that is written on its own."""
    if isinstance(given, str):
        return b.CreateString(given)
    if isinstance(given, bytes):
        return b.CreateByteVector(given)
    if isinstance(given, list):
        offsets = [_write(b, table) for table in given]
        b.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            b.PrependUOffsetTRelative(offset)
        return b.EndVector()
    if isinstance(given, tuple):
        array = np.asarray(given[2], given[1])
        b.StartVector(array.itemsize, array.size, max(array.itemsize, 4))
        for number in array[::-1]:
            b.Prepend(_NUMBERS[given[1]], number.item())
        return b.EndVector()
    fields = {slot: (v if _is_number(v) else ("at", _write(b, v))) for slot, v in given.items()}
    b.StartObject(max(fields, default=-1) + 1)
    for slot, (kind, value) in fields.items():
        if kind == "at":
            b.PrependUOffsetTRelative(value)
        else:
            b.Prepend(_NUMBERS[kind], value)
        b.Slot(slot)
    return b.EndObject()


_FLAGS = flatbuffers.number_types
_NUMBERS = {"u1": _FLAGS.Uint8Flags, "i1": _FLAGS.Int8Flags, "<i4": _FLAGS.Int32Flags, "<u4": _FLAGS.Uint32Flags}
_NUMBERS |= {"<i8": _FLAGS.Int64Flags, "<u8": _FLAGS.Uint64Flags, "<f8": _FLAGS.Float64Flags}


def _is_number(given):
    return isinstance(given, tuple) and len(given) == 2


def flatbuffer(root, identifier):
    b = flatbuffers.Builder(1024)
    b.Finish(_write(b, root), identifier)
    return bytes(b.Output())


def i4(v):
    return ("<i4", v)


def u4(v):
    return ("<u4", v)


# ---- values


class _Values:
    """Values by number, of which some have names; ``encode`` makes the union of one."""

    def __init__(self, named, encode):
        self.encode, self.index, self.tables = encode, {}, []
        for name, given in named.items():
            self.index[name] = self.add(given)

    def add(self, given):
        kind, table = self.encode(self, given)
        self.tables.append({0: ("u1", kind), 1: table})
        return len(self.tables) - 1

    def of(self, given):
        return self.index[given] if isinstance(given, str) else self.add(given)


def _vulkan_value(values, given, constants, named):
    if given is None:
        return 1, {}
    if isinstance(given, bool):
        return 4, {0: ("u1", given)}
    if isinstance(given, int):
        return 2, {0: ("<i8", given)}
    if isinstance(given, float):
        return 3, {0: ("<f8", given)}
    if isinstance(given, Text):
        return 10, {0: given.text}
    if isinstance(given, Size):
        return 11, {0: i4(0)}
    if isinstance(given, list):
        return 9, {0: vector("<i4", [values.of(v) for v in given])}
    if isinstance(given, tuple):
        floats = any(isinstance(v, float) for v in given)
        return (7, {0: vector("<f8", given)}) if floats else (6, {0: vector("<i8", given)})
    constant = -1
    if given.data is not None:
        raw = np.ascontiguousarray(given.data).tobytes()
        constant = len(constants)
        key = given.named
        if key:
            named[key] = raw
        constants.append((raw, key))
    staging = VULKAN_TYPES[given.staging or given.dtype]
    fields = {0: ("i1", VULKAN_TYPES[given.dtype]), 1: vector("<u4", given.shape), 2: i4(constant), 3: i4(-1)}
    return 5, fields | {6: ("i1", staging)}


def vulkan(tensors, calls, inputs, outputs, *, version="0", identifier=b"VK00", magic=b"VH00"):
    """The blob of a delegate, and its data with names. ``tensors`` are `T` by name, ``calls`` are (operator, arguments,
    result): names of values, a list of which is one of values, or numbers, tuples, None."""
    constants, named = [], {}
    values = _Values(tensors, lambda v, given: _vulkan_value(v, given, constants, named))
    chain = []
    for operator, args, result in calls:
        ids = [values.of(a) for a in args] + [values.of(result)]
        chain.append({0: u4(0), 1: operator, 2: vector("<i4", ids)})
    places, raw = [], b""
    for data, key in constants:
        if key:
            places.append({0: ("<u8", BY_NAME), 1: ("<u8", len(data)), 2: key})
        else:
            places.append({0: ("<u8", len(raw)), 1: ("<u8", len(data))})
            raw += data + bytes(-len(data) % 16)
    graph = {0: version, 1: chain, 2: values.tables, 3: vector("<u4", [values.of(v) for v in inputs.split()])}
    graph |= {4: vector("<u4", [values.of(v) for v in outputs.split()]), 5: places}
    body = flatbuffer(graph, identifier)
    body += bytes(-len(body) % 16)
    header = bytes(4) + magic + struct.pack("<HIIIQ", 30, 32, len(body), 32 + len(body), len(raw))
    return header + bytes(2) + body + raw, named


def _program_value(values, given, constants):
    if given is None:
        return 1, {}
    if isinstance(given, bool):
        return 3, {0: ("u1", given)}
    if isinstance(given, int):
        return 2, {0: ("<i8", given)}
    if isinstance(given, float):
        return 4, {0: ("<f8", given)}
    if isinstance(given, Text):
        return 6, {0: given.text}
    if isinstance(given, list):
        return 10, {0: vector("<i4", [values.of(v) for v in given])}
    if isinstance(given, tuple):
        return 7, {0: vector("<i8", [values.of(v) for v in given])}
    order = tuple(range(len(given.shape))) if given.order is None else given.order
    fields = {0: ("i1", PROGRAM_TYPES[given.dtype]), 2: vector("<i4", given.shape), 3: vector("u1", order)}
    if given.external:
        fields[9] = {1: "weight", 2: ("i1", 1)}
    elif given.data is not None:
        fields[5] = u4(len(constants))
        constants.append(np.ascontiguousarray(np.transpose(given.data, order)).tobytes())
    if given.memory is not None:
        area, at = given.memory
        fields[6] = {0: u4(area), 1: u4(at)}
    return 5, fields


def program(
    tensors, steps, inputs, outputs, blobs=(), *, backend="VulkanBackend", header=True, method="forward", **more
):
    """A ``.pte`` file. ``steps`` are (operator, arguments, result) of kernels, ``aten::add.out``, whose result is the
    name of a tensor or several, (number of a blob, names) of delegates, or ("move", from, to). ``blobs`` are what
    `vulkan` gives. ``more``: ``version``, ``methods``, ``inline``, ``options``, ``jump``."""
    constants = [b""]
    values = _Values(tensors, lambda v, given: _program_value(v, given, constants))
    operators, instructions = [], []
    for step in steps:
        if step[0] == "move":
            instructions.append({0: ("u1", 3), 1: {0: i4(values.of(step[1])), 1: i4(values.of(step[2]))}})
            continue
        if isinstance(step[0], int):
            args = vector("<i4", [values.of(v) for v in step[1].split()])
            instructions.append({0: ("u1", 2), 1: {0: i4(step[0]), 1: args}})
            continue
        operator, args, result = step
        name, _, overload = operator.partition(".")
        made = result.split()
        written = [values.of(v) for v in made]
        ids = [values.of(a) for a in args] + written + [values.add(made) if len(made) > 1 else written[0]]
        instructions.append({0: ("u1", 1), 1: {0: i4(len(operators)), 1: vector("<i4", ids)}})
        operators.append({0: name, 1: overload})
    if more.get("jump"):
        instructions.append({0: ("u1", 4), 1: {0: i4(0), 1: i4(0)}})
    named = {key: raw for _, data in blobs for key, raw in data.items()}
    segments, offsets, raw = [], [], b""
    for data in constants:
        offsets.append(len(raw))
        raw += data + bytes(-len(data) % 16)
    segments.append(raw)
    inline = more.get("inline", True)
    where = [(0, i) if inline else (1, len(segments) + i) for i in range(len(blobs))]
    segments += [] if inline else [blob for blob, _ in blobs]
    named_at = {key: len(segments) + i for i, key in enumerate(named)}
    segments += named.values()
    options = [{0: key, 1: value} for key, value in more.get("options", {}).items()]
    delegates = [{0: backend, 1: {0: ("i1", loc), 1: u4(i)}, 2: options} for loc, i in where]
    plan = {0: method, 2: values.tables, 3: vector("<i4", [values.of(v) for v in inputs.split()])}
    plan |= {4: vector("<i4", [values.of(v) for v in outputs.split()]), 5: [{2: instructions}]}
    plan |= {6: operators, 7: delegates}
    plans = [plan, *({**plan, 0: name} for name in more.get("methods", ()))]
    begins, at = [], 0
    for segment in segments:
        begins.append(at)
        at += len(segment) + -len(segment) % 16
    root = {0: u4(more.get("version", 0)), 1: plans, 3: [{0: blob} for blob, _ in blobs] if inline else []}
    root[4] = [{0: ("<u8", begin), 1: ("<u8", len(s))} for begin, s in zip(begins, segments, strict=True)]
    root |= {5: {0: u4(0), 1: vector("<u8", offsets)}, 7: [{0: k, 1: u4(i)} for k, i in named_at.items()]}
    body = flatbuffer(root, more.get("identifier", b"ET12"))
    if not header:
        return body
    size = len(body) + 32
    base = size + -size % 16
    head = b"eh00" + struct.pack("<IQQQ", 32, size, base, at)
    body = struct.pack("<I", struct.unpack("<I", body[:4])[0] + 32) + body[4:8] + head + body[8:]
    return body + bytes(base - size) + b"".join(s + bytes(-len(s) % 16) for s in segments)


def delegated(tensors, calls, inputs, outputs, outer=None, **more):
    """A program that is one delegate. ``outer`` are inputs and outputs of which the program has other types."""
    names = list(dict.fromkeys((*inputs.split(), *outputs.split())))
    known = {name: T(tensors[name].shape, tensors[name].staging or tensors[name].dtype) for name in names}
    step = [(0, f"{inputs} {outputs}")]
    return program(known | (outer or {}), step, inputs, outputs, [vulkan(tensors, calls, inputs, outputs)], **more)


def found(data, *inputs):
    """The outputs of a program for its inputs in their order, by the ops' references."""
    graph = load_model(data)
    made = reference_outputs(graph, dict(zip(graph.inputs, inputs, strict=True)))
    return list(made.values())
