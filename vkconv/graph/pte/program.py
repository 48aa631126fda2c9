"""A ``.pte`` file as plain data: its method, the values and instructions of it, and the graphs of its delegates.

Source of the format: ExecuTorch 1.5.1, schema/program.fbs, and docs/source/pte-file-format.md for header and segments.
"""

import struct
from collections.abc import Mapping, Sequence

import numpy as np

from vkconv.core import MAX_NODES, ModelError, shape_problem, shape_str, short
from vkconv.core import DType as D
from vkconv.graph.pte.flatbuffer import AGAIN, Budget, Bytes, Table
from vkconv.graph.pte.values import (
    OUTSIDE,
    Chain,
    Delegated,
    Held,
    Kind,
    Members,
    Move,
    Step,
    Tensor,
    call_of,
    elements,
    numbers,
    plain,
)
from vkconv.graph.pte.vulkan import VULKAN, read_blob

IDENTIFIER = b"ET12"
_BUNDLED = b"BP08"
_VERSION = 0
_HEADER, _HEADER_BYTES = b"eh00", 24
_METHOD = "forward"
MAX_VALUES = 16 * MAX_NODES
# ScalarType of the schema.
_DTYPES: dict[int, D] = {
    **{0: D.U8, 1: D.I8, 2: D.I16, 3: D.I32, 4: D.I64, 5: D.F16, 6: D.F32},
    **{11: D.BOOL, 15: D.BF16, 27: D.U16, 28: D.U32},
}
_OTHER_TYPES = {
    **{7: "f64", 12: "qint8", 13: "quint8", 14: "qint32", 16: "quint4x2", 17: "quint2x4", 22: "bits16", 29: "u64"},
    **{23: "float8_e5m2", 24: "float8_e4m3fn", 25: "float8_e5m2fnuz", 26: "float8_e4m3fnuz"},
}
# KernelTypes, InstructionArguments and places of data, of the schema.
_NULL, _INT, _BOOL, _DOUBLE, _TENSOR, _STRING, _INTS, _DOUBLES, _BOOLS, _TENSORS, _OPTIONAL_TENSORS = range(1, 12)
_PLAIN: Mapping[int, Kind] = {
    **{_INT: "int", _BOOL: "bool", _DOUBLE: "double", _STRING: "string", _DOUBLES: "doubles", _BOOLS: "bools"},
    **dict.fromkeys((_TENSORS, _OPTIONAL_TENSORS), "members"),
}
_KERNEL_CALL, _DELEGATE_CALL, _MOVE_CALL, _JUMP, _FREE = range(1, 6)
_IN_SEGMENT, _EXTERNAL = 1, 1


def read(data: bytes) -> Chain:
    """The method of a program. Raises ModelError for what is no whole program of a version that vkconv knows."""
    if not data:
        raise ModelError(f"the file is empty; {AGAIN}")
    if data[4:8] == _BUNDLED:
        raise ModelError("is a bundled program, with inputs to test it by; load the .pte file that it was made of")
    if len(data) < 8 or data[4:8] != IDENTIFIER:
        named, ours = data[4:8].decode("ascii", "replace"), IDENTIFIER.decode()
        if named[:2] == "ET" and named[2:].isdigit():
            raise ModelError(f"is of ExecuTorch's schema {named}; vkconv reads {ours}: export it again")
        raise ModelError(f"is not an ExecuTorch program (bytes 4 to 7 are not {ours}); name a .pte file")
    return _Reader(data).chain()


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._budget = memoryview(data), Budget()
        size, self._base = len(data), 0
        if data[8:12] == _HEADER:
            if len(data) < 8 + _HEADER_BYTES:
                raise ModelError(f"has {len(data)} bytes, less than its header; {AGAIN}")
            length, size, self._base = struct.unpack_from("<IQQ", data, 12)
            if length < _HEADER_BYTES or size > len(data) or self._base > len(data):
                raise ModelError(
                    f"says that its program has {size} bytes and its segments begin at byte {self._base}, and it has "
                    f"{len(data)} bytes; it is truncated or damaged, {AGAIN}"
                )
        program = self._program = Bytes(self._data[:size], "its program", self._budget).root
        version = program.number(0, "I")
        if version != _VERSION:
            raise ModelError(
                f"is of version {version} of ExecuTorch's programs; vkconv reads {_VERSION}: export it again"
            )
        self._parts = [(part.number(0, "Q"), part.number(1, "Q")) for part in program.tables(4, "segments", MAX_VALUES)]
        self._named = {entry.text(0): entry.number(1, "I") for entry in program.tables(7, "named data", MAX_VALUES)}
        constants = program.table(5)
        self._offsets_in = constants.number(0, "I") if constants is not None else 0
        self._offsets = constants.ints(1, "<u8", "constants") if constants is not None else ()
        self._buffers = program.tables(2, "constants", MAX_VALUES)
        self._inline = program.tables(3, "blobs of delegates", MAX_NODES)
        self._blobs: dict[tuple[int, int], Chain] = {}

    def chain(self) -> Chain:
        plans = self._program.tables(1, "methods", MAX_NODES)
        names = [plan.text(0) for plan in plans]
        if not plans:
            raise ModelError(f"has no method; {AGAIN}")
        if len(plans) > 1 and _METHOD not in names:
            listed = ", ".join(short(name) for name in names[:8])
            raise ModelError(f"has {len(plans)} methods ({listed}), none of them {_METHOD}; export one alone")
        at = names.index(_METHOD) if _METHOD in names else 0
        facts = {"pte.method": names[at]}
        if len(plans) > 1:
            facts["pte.other_methods"] = ", ".join(name for name in names if name != names[at])
        return self._method(plans[at], facts)

    def _part(self, index: int, what: str) -> memoryview:
        """A segment, which lies behind the FlatBuffer."""
        if not 0 <= index < len(self._parts):
            raise ModelError(f"{what} is in segment {index}, of {len(self._parts)}; the file is damaged, {AGAIN}")
        offset, size = self._parts[index]
        end = self._base + offset + size
        if end > len(self._data):
            raise ModelError(f"{what} ends at byte {end} of {len(self._data)}; it is truncated or damaged, {AGAIN}")
        return self._data[end - size : end]

    def _by_name(self, name: str) -> memoryview | None:
        index = self._named.get(name)
        return None if index is None else self._part(index, f"the data {short(name)}")

    # The method.

    def _method(self, plan: Table, facts: dict[str, str]) -> Chain:
        values = tuple(self._value(table, f"value {i}") for i, table in enumerate(plan.tables(2, "values", MAX_VALUES)))
        operators = [_operator(table) for table in plan.tables(6, "operators", MAX_NODES)]
        delegates = [self._delegate(table, facts) for table in plan.tables(7, "delegates", MAX_NODES)]
        steps: list[Step] = []
        for chain in plan.tables(5, "chains", MAX_NODES):
            for instruction in chain.tables(2, "instructions", MAX_NODES):
                steps += _steps(instruction, operators, delegates, values)
            if len(steps) > MAX_NODES:
                raise ModelError(f"has more than {MAX_NODES} instructions, which vkconv takes; simplify the model")
        inputs = numbers(plan.ints(3, "<i4", "inputs"), len(values), "an input")
        outputs = numbers(plan.ints(4, "<i4", "outputs"), len(values), "an output")
        if not outputs:
            raise ModelError(f"method {facts['pte.method']} has no outputs; {AGAIN}")
        return Chain(values, tuple(steps), inputs, outputs, facts)

    def _value(self, table: Table, what: str) -> Held:
        kind, held = table.number(0, "B"), table.table(1)
        if held is None or kind == _NULL:
            return None
        if kind in _PLAIN:
            return plain(held, _PLAIN[kind])
        if kind == _INTS:  # by the numbers of values
            return Members(held.ints(0, "<i8", "members"))
        if kind == _TENSOR:
            return self._tensor(held, what)
        raise ModelError(f"{what} is of kind {kind}, which the schema does not have; the file is damaged, {AGAIN}")

    def _tensor(self, table: Table, what: str) -> Tensor:
        number, dims = table.number(0, "b"), table.ints(2, "<i4", "dimensions")
        order = table.ints(3, "u1", "dimensions")
        dtype = _DTYPES.get(number)
        type_name = str(dtype or _OTHER_TYPES.get(number, f"number {number}"))
        problem = "a dimension is negative" if any(d < 0 for d in dims) else shape_problem(dims, dtype or D.I8)
        if problem:
            raise ModelError(f"{what} cannot have the shape {shape_str(dims)}: {problem}; the file is damaged, {AGAIN}")
        order = order or tuple(range(len(dims)))
        if sorted(order) != list(range(len(dims))):
            raise ModelError(f"{what} of {len(dims)} dimensions has them in the order {order}; it is damaged, {AGAIN}")
        allocated, extra, index = table.table(6), table.table(9), table.number(5, "I")
        place = None
        if allocated is not None:
            place = (allocated.number(0, "I"), allocated.number(1, "I") | allocated.number(2, "I") << 32)
            if not index or dtype is None:
                return Tensor(dims, dtype, type_name, memory=place)
        if place is None and extra is not None and extra.number(2, "b") == _EXTERNAL:
            return Tensor(dims, dtype, type_name, missing=OUTSIDE)
        if not index or dtype is None:
            return Tensor(dims, dtype, type_name)
        stored = elements(self._constant(index, what), tuple(dims[axis] for axis in order), dtype, what)
        array = np.transpose(stored, [order.index(axis) for axis in range(len(dims))])
        if place is not None:
            return Tensor(dims, dtype, type_name, memory=place, initial=array)
        return Tensor(dims, dtype, type_name, array)

    def _constant(self, index: int, what: str) -> memoryview:
        """The bytes from where a constant begins."""
        if self._buffers:
            if index >= len(self._buffers):
                raise ModelError(f"{what} is constant {index}, of {len(self._buffers)}; the file is damaged, {AGAIN}")
            return self._buffers[index].raw(0, "bytes of a constant")
        if index >= len(self._offsets):
            raise ModelError(f"{what} is constant {index}, of {len(self._offsets)}; the file is damaged, {AGAIN}")
        return self._part(self._offsets_in, what)[self._offsets[index] :]

    def _delegate(self, table: Table, facts: dict[str, str]) -> tuple[str, Chain | None]:
        backend, reference = table.text(0), table.table(1)
        options = {
            spec.text(0): bytes(spec.raw(1, "bytes of an option")[:64]) for spec in table.tables(2, "options", 64)
        }
        if backend != VULKAN:
            return backend, None
        in_segment, index = (reference.number(0, "b"), reference.number(1, "I")) if reference is not None else (0, 0)
        if (in_segment, index) not in self._blobs:
            self._blobs[in_segment, index] = self._blob(in_segment == _IN_SEGMENT, index, options)
        chain = self._blobs[in_segment, index]
        facts |= chain.facts
        return backend, chain

    def _blob(self, in_segment: bool, index: int, options: Mapping[str, bytes]) -> Chain:
        what = f"the graph of a {VULKAN}"
        if in_segment:
            blob = self._part(index, what)
        elif index < len(self._inline):
            blob = self._inline[index].raw(0, "bytes of a delegate")
        else:
            raise ModelError(f"{what} is blob {index}, of {len(self._inline)}; the file is damaged, {AGAIN}")
        return read_blob(blob, self._by_name, options, self._budget)


def _operator(table: Table) -> str:
    """As ``aten::add.out``."""
    name, overload = table.text(0), table.text(1)
    return f"{name}.{overload}" if overload else name


def _steps(
    instruction: Table,
    operators: Sequence[str],
    delegates: Sequence[tuple[str, Chain | None]],
    values: Sequence[Held],
) -> list[Step]:
    kind, held = instruction.number(0, "B"), instruction.table(1)
    if held is None or kind == _FREE:
        return []
    if kind == _MOVE_CALL:
        moved = numbers((held.number(0, "i"), held.number(1, "i")), len(values), "what is moved")
        return [Move(*moved)]
    if kind == _JUMP:
        raise ModelError("control flow (torch.cond or a loop); vkconv runs straight-line programs: export one without")
    if kind not in (_KERNEL_CALL, _DELEGATE_CALL):
        raise ModelError(f"an instruction is of kind {kind}, which the schema does not have; it is damaged, {AGAIN}")
    index = held.number(0, "i")
    args = numbers(held.ints(1, "<i4", "arguments"), len(values), "an argument")
    known: Sequence[object] = operators if kind == _KERNEL_CALL else delegates
    if not 0 <= index < len(known):
        raise ModelError(f"an instruction calls number {index}, of {len(known)}; the file is damaged, {AGAIN}")
    if kind == _DELEGATE_CALL:
        return [Delegated(delegates[index][0], args, delegates[index][1])]
    return [call_of(operators[index], args, values, held.bytes.budget, written_twice=True)]
