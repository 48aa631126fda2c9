"""The graph that a Vulkan delegate carries, as plain data. Where a phone keeps a tensor, in which texture, along which
axis, in whose memory, changes no value: it is left out, and vkconv chooses its own.

Source of the format: ExecuTorch 1.5.1, backends/vulkan/serialization/schema.fbs and vulkan_graph_serialize.py.
"""

import struct
from collections.abc import Callable, Mapping

from vkconv.core import MAX_NODES, ModelError, shape_problem, shape_str, short
from vkconv.core import DType as D
from vkconv.graph.pte.flatbuffer import AGAIN, Budget, Bytes, Table
from vkconv.graph.pte.values import OPEN, OUTSIDE, Chain, Held, Kind, Tensor, call_of, elements, numbers, plain

VULKAN = "VulkanBackend"
FORCED = "pte.force_fp16"
"""Of a chain's facts: the delegate computes floats in f16 that the program has in f32."""

_MAGIC, _HEADER_BYTES, _IDENTIFIER, _VERSION = b"VH00", 30, b"VK00", "0"
_BY_NAME = (1 << 64) - 1  # the offset of constants that are data with a name
_MAX_VALUES = 16 * MAX_NODES
_OPTION = "force_fp16"
# VkDataType and GraphTypes of the schema.
_DTYPES: dict[int, D] = {0: D.BOOL, 1: D.U8, 2: D.I8, 3: D.I32, 4: D.F16, 5: D.F32, 7: D.I64}
_F16, _F32, _F64 = 4, 5, 6
_UNSET = 127
_NULL, _INT, _DOUBLE, _BOOL, _TENSOR, _INTS, _DOUBLES, _BOOLS, _VALUES, _STRING, _SYMBOL = range(1, 12)
_PLAIN: Mapping[int, Kind] = {
    **{_INT: "int", _DOUBLE: "double", _BOOL: "bool", _INTS: "ints", _DOUBLES: "doubles", _BOOLS: "bools"},
    **{_VALUES: "members", _STRING: "string"},
}


def read_blob(
    blob: memoryview,
    named: Callable[[str], memoryview | None],
    options: Mapping[str, bytes],
    budget: Budget,
) -> Chain:
    """The graph in the blob of a delegate; ``named`` gives the program's data of a name. Raises ModelError for what is
    no whole graph of a version that vkconv knows."""
    if len(blob) < _HEADER_BYTES or bytes(blob[4:8]) != _MAGIC:
        raise ModelError(
            f"its {VULKAN} has a blob of {len(blob)} bytes that does not begin as vkconv knows it, with "
            f"{_MAGIC.decode()} at byte 4; lower the model again with ExecuTorch 1.5"
        )
    length, at, size, constants_at, constants_size = struct.unpack_from("<HIIIQ", blob, 8)
    if length < _HEADER_BYTES or at + size > len(blob) or constants_at + constants_size > len(blob):
        raise ModelError(
            f"the blob of its {VULKAN} says that its graph ends at byte {at + size} and its constants at byte "
            f"{constants_at + constants_size}, of {len(blob)}; the file is truncated or damaged, {AGAIN}"
        )
    graph = blob[at : at + size]
    if bytes(graph[4:8]) != _IDENTIFIER:
        found = bytes(graph[4:8]).decode("ascii", "replace")
        raise ModelError(
            f"the graph of its {VULKAN} is of schema {short(found)}; vkconv reads {_IDENTIFIER.decode()}: lower the "
            "model again with ExecuTorch 1.5"
        )
    root = Bytes(graph, f"the graph of its {VULKAN}", budget).root
    version = root.text(0)
    if version != _VERSION:
        raise ModelError(
            f"the graph of its {VULKAN} is of version {short(version)}; vkconv reads {_VERSION}: lower the model again "
            "with ExecuTorch 1.5"
        )
    return _Graph(root, blob[constants_at : constants_at + constants_size], named, options).chain()


class _Graph:
    def __init__(
        self,
        root: Table,
        constants: memoryview,
        named: Callable[[str], memoryview | None],
        options: Mapping[str, bytes],
    ) -> None:
        self._root, self._constants, self._named = root, constants, named
        self._places = root.tables(5, "constants", _MAX_VALUES)
        self._tables = root.tables(2, "values", _MAX_VALUES)
        self._forced = options.get(_OPTION, b"\0") != b"\0" or any(_is_forced(table) for table in self._tables)

    def chain(self) -> Chain:
        values = tuple(self._value(table, f"value {i} of a delegate") for i, table in enumerate(self._tables))
        steps = []
        for table in self._root.tables(1, "calls of operators", MAX_NODES):
            name = table.text(1)
            args = numbers(table.ints(2, "<i4", "arguments"), len(values), "an argument of a delegate")
            steps.append(call_of(name, args, values, table.bytes.budget))
        inputs, outputs = (
            numbers(self._root.ints(slot, "<u4", what), len(values), f"one of the {what} of a delegate")
            for slot, what in ((3, "inputs"), (4, "outputs"))
        )
        return Chain(values, tuple(steps), inputs, outputs, {FORCED: "true"} if self._forced else {})

    def _value(self, table: Table, what: str) -> Held:
        kind, held = table.number(0, "B"), table.table(1)
        if held is None or kind == _NULL:
            return None
        if kind in _PLAIN:
            return plain(held, _PLAIN[kind])
        if kind == _SYMBOL:
            return OPEN
        if kind == _TENSOR:
            return self._tensor(held, what)
        raise ModelError(f"{what} is of kind {kind}, which the schema does not have; the file is damaged, {AGAIN}")

    def _tensor(self, table: Table, what: str) -> Tensor:
        """Where the delegate computes in f16 what the program has in f32, floats are f32 here, and the constants what
        they were rounded to."""
        number, dims = table.number(0, "b"), table.ints(1, "<u4", "dimensions")
        stored = _DTYPES.get(number)
        if problem := shape_problem(dims, stored or D.I8):
            raise ModelError(f"{what} cannot have the shape {shape_str(dims)}: {problem}; the file is damaged, {AGAIN}")
        dtype = D.F32 if self._forced and number == _F16 else stored
        type_name = str(dtype or ("f64" if number == _F64 else f"number {number}"))
        constant = table.number(2, "i")
        if constant < 0 or stored is None:
            return Tensor(dims, dtype, type_name)
        if constant >= len(self._places):
            raise ModelError(f"{what} is constant {constant}, of {len(self._places)}; the file is damaged, {AGAIN}")
        raw = self._bytes(self._places[constant], what)
        if raw is None:
            return Tensor(dims, dtype, type_name, missing=OUTSIDE)
        return Tensor(dims, dtype, type_name, elements(raw, dims, stored, what))

    def _bytes(self, place: Table, what: str) -> memoryview | None:
        offset, length, name = place.number(0, "Q"), place.number(1, "Q"), place.text(2)
        found = self._named(name) if offset == _BY_NAME or name else self._constants[offset:]
        if found is not None and length > len(found):
            raise ModelError(f"{what} takes {length} bytes, of which {len(found)} are there; {AGAIN}")
        return None if found is None else found[:length]


def _is_forced(table: Table) -> bool:
    """Whether a value is a tensor of f16 that goes in and out as f32."""
    held = table.table(1) if table.number(0, "B") == _TENSOR else None
    return held is not None and held.number(0, "b") == _F16 and held.number(6, "b", _UNSET) == _F32
