"""What a SPIR-V module says of its interface: buffers, push constants, specialization constants, shared memory, and
which of them its functions use.

Numbers are those of the SPIR-V registry. It has tables and arithmetic of its own, beside those of `vkconv.spirv` and
`vkconv.compilers.integers`: what holds shaders to their declarations should not share a mistake with what reads them.
"""

import dataclasses
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence

from vkconv.spirv import instructions, words_of

NAME, MEMBER_NAME, EXTENSION, CAPABILITY = 5, 6, 10, 17
VOID, BOOL, INT, FLOAT, VECTOR, MATRIX, ARRAY, RUNTIME_ARRAY, STRUCT, POINTER = 19, 20, 21, 22, 23, 24, 28, 29, 30, 32
TRUE, FALSE, CONSTANT, COMPOSITE = 41, 42, 43, 44
SPEC_TRUE, SPEC_FALSE, SPEC_CONSTANT, SPEC_COMPOSITE, SPEC_OP, FUNCTION, VARIABLE = 48, 49, 50, 51, 52, 54, 59
ACCESS_CHAIN, COOPERATIVE_MATRIX = 65, 4456
DECORATE, MEMBER_DECORATE = 71, 72
SPEC_ID, BUILT_IN, RESTRICT, ALIASED, COHERENT, NON_WRITABLE, NON_READABLE = 1, 11, 19, 20, 23, 24, 25
BINDING, SET, OFFSET, WORKGROUP_SIZE = 33, 34, 35, 25
UNIFORM_CONSTANT, WORKGROUP, PUSH_CONSTANT, STORAGE_BUFFER = 0, 4, 9, 12
IMAGE, SAMPLED_IMAGE = 25, 27
_DIMS = {1: "2D", 2: "3D"}
_FORMATS = {1: "rgba32f", 2: "rgba16f"}

CAPABILITIES = {
    1: "Shader",
    9: "Float16",
    11: "Int64",
    22: "Int16",
    39: "Int8",
    61: "GroupNonUniform",
    62: "GroupNonUniformVote",
    63: "GroupNonUniformArithmetic",
    64: "GroupNonUniformBallot",
    65: "GroupNonUniformShuffle",
    66: "GroupNonUniformShuffleRelative",
    67: "GroupNonUniformClustered",
    4433: "StorageBuffer16BitAccess",
    4448: "StorageBuffer8BitAccess",
    4464: "DenormPreserve",
    4465: "DenormFlushToZero",
    4466: "SignedZeroInfNanPreserve",
    4467: "RoundingModeRTE",
    5116: "BFloat16TypeKHR",
    5118: "BFloat16CooperativeMatrixKHR",
    5345: "VulkanMemoryModel",
    5346: "VulkanMemoryModelDeviceScope",
    6016: "DotProductInputAll",
    6017: "DotProductInput4x8Bit",
    6018: "DotProductInput4x8BitPacked",
    6019: "DotProduct",
    6022: "CooperativeMatrixKHR",
    6033: "AtomicFloat32AddEXT",
}


_VECTORS = {"float": "vec", "int": "ivec", "uint": "uvec", "bool": "bvec"}


def _signed(bits: int) -> int:
    return bits - (1 << 32) if bits & 0x8000_0000 else bits


def _quotient(a: int, b: int) -> int:
    """Division as SPIR-V has it, towards zero; of no use by 0, where SPIR-V leaves it undefined."""
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


# OpSpecConstantOp's operations on 32-bit words, by opcode; operands and results are unsigned.
_OPERATIONS: Mapping[int, Callable[..., int]] = {
    124: lambda a: a,
    126: lambda a: -a,
    128: lambda a, b: a + b,
    130: lambda a, b: a - b,
    132: lambda a, b: a * b,
    134: lambda a, b: _quotient(a, b),
    135: lambda a, b: _quotient(_signed(a), _signed(b)),
    137: lambda a, b: a - b * _quotient(a, b),
    138: lambda a, b: _signed(a) - _signed(b) * _quotient(_signed(a), _signed(b)),
    139: lambda a, b: _signed(a) % _signed(b) if b else 0,
    164: lambda a, b: a == b,
    165: lambda a, b: a != b,
    166: lambda a, b: a | b,
    167: lambda a, b: a & b,
    168: lambda a: not a,
    169: lambda a, b, c: b if a else c,
    170: lambda a, b: a == b,
    171: lambda a, b: a != b,
    172: lambda a, b: a > b,
    173: lambda a, b: _signed(a) > _signed(b),
    174: lambda a, b: a >= b,
    175: lambda a, b: _signed(a) >= _signed(b),
    176: lambda a, b: a < b,
    177: lambda a, b: _signed(a) < _signed(b),
    178: lambda a, b: a <= b,
    179: lambda a, b: _signed(a) <= _signed(b),
    194: lambda a, b: a >> b,
    195: lambda a, b: _signed(a) >> b,
    196: lambda a, b: a << b,
    197: lambda a, b: a | b,
    198: lambda a, b: a ^ b,
    199: lambda a, b: a & b,
    200: lambda a: ~a,
}
_EXTRACT = 81
# Which operands of an instruction in a function are ids, where others are literals: OpExtInst, OpLoad, OpStore,
# OpVectorShuffle, OpCompositeExtract, OpCompositeInsert, OpLoopMerge, OpSelectionMerge, OpBranchConditional, OpSwitch.
_IDS = {
    12: (slice(0, 3), slice(4, None)),
    61: (slice(0, 3),),
    62: (slice(0, 2),),
    79: (slice(0, 4),),
    _EXTRACT: (slice(0, 3),),
    82: (slice(0, 4),),
    246: (),
    247: (),
    250: (slice(0, 1),),
    251: (slice(0, 1),),
}
_ALL = (slice(0, None),)
# The same of types: vector, matrix, array, unsized array, struct, pointer, cooperative matrix.
_IDS_OF_TYPE = {VECTOR: 1, MATRIX: 1, ARRAY: 2, RUNTIME_ARRAY: 1, STRUCT: None, COOPERATIVE_MATRIX: None}


@dataclasses.dataclass(frozen=True)
class View:
    """One variable over a buffer: the name and GLSL type of its array, and what is promised of it; or a texture, and
    where it is stored the format of its texels."""

    name: str
    type: str
    promises: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Member:
    """A member of the push-constant block; ``count`` is an array's length, else 1."""

    name: str
    type: str
    offset: int
    count: int


@dataclasses.dataclass(frozen=True)
class Constant:
    """A specialization constant with its default, a bool, int or float by its type."""

    name: str
    type: str
    default: bool | int | float


class Module:
    """A module's interface; ``views`` by set and binding, ``constants`` by constant_id without the workgroup's size,
    whose ids are ``local_size_ids``."""

    def __init__(self, code: bytes, name: str = "module") -> None:
        self._names: dict[int, str] = {}
        self._members: dict[tuple[int, int], str] = {}
        self._decorations: dict[int, dict[int, tuple[int, ...]]] = {}
        self._of_member: dict[tuple[int, int], dict[int, tuple[int, ...]]] = {}
        self._types: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._values: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._variables: list[tuple[int, int, int]] = []
        self.capabilities: set[str] = set()
        self.extensions: set[str] = set()
        self._used: set[int] = set()
        self._chains: list[tuple[int, int]] = []
        declared = True
        for op, operands in instructions(words_of(code), name):
            declared = declared and op != FUNCTION
            if declared:
                self._take(op, operands)
                continue
            for ids in _IDS.get(op, _ALL):
                self._used.update(operands[ids])
            if op == ACCESS_CHAIN and len(operands) > 3:
                self._chains.append((operands[2], operands[3]))
        sized = [id_ for id_, known in self._decorations.items() if known.get(BUILT_IN) == (WORKGROUP_SIZE,)]
        self._local = [part for id_ in sized for part in self._values[id_][1][1:]]
        self.local_size_ids = tuple(self._decorations[part][SPEC_ID][0] for part in self._local)
        self.views = self._views()
        self.push = self._push()
        self.constants = self._constants()

    def _take(self, op: int, operands: tuple[int, ...]) -> None:
        if op == NAME:
            self._names[operands[0]] = _text(operands[1:])
        elif op == MEMBER_NAME:
            self._members[operands[0], operands[1]] = _text(operands[2:])
        elif op == EXTENSION:
            self.extensions.add(_text(operands))
        elif op == CAPABILITY:
            self.capabilities.add(CAPABILITIES.get(operands[0], str(operands[0])))
        elif op == DECORATE:
            self._decorations.setdefault(operands[0], {})[operands[1]] = operands[2:]
        elif op == MEMBER_DECORATE:
            self._of_member.setdefault((operands[0], operands[1]), {})[operands[2]] = operands[3:]
        elif VOID <= op <= POINTER or op == COOPERATIVE_MATRIX:
            self._types[operands[0]] = op, operands[1:]
        elif TRUE <= op <= SPEC_OP:
            self._values[operands[1]] = op, (operands[0], *operands[2:])
        elif op == VARIABLE:
            self._variables.append((operands[1], self._types[operands[0]][1][1], operands[2]))

    # ---- types

    def _type(self, id_: int) -> str:
        """A type in GLSL's words."""
        op, operands = self._types[id_]
        if op == INT:
            width, signed = operands
            return ("int" if signed else "uint") + ("" if width == 32 else f"{width}_t")
        if op == FLOAT:
            return "float" if operands[0] == 32 else f"float{operands[0]}_t"
        if op == VECTOR:
            of = self._type(operands[0])
            return {"float": "vec", "int": "ivec", "uint": "uvec", "bool": "bvec"}.get(of, f"{of}_vec") + str(
                operands[1]
            )
        return {BOOL: "bool"}.get(op, f"type {op}")

    def _scalar(self, id_: int, bits: int) -> bool | int | float:
        of = self._type(id_)
        if of == "float":
            return float(struct.unpack("<f", struct.pack("<I", bits))[0])
        return _signed(bits) if of == "int" else bits

    def _size(self, id_: int, words: Sequence[int]) -> tuple[int, int]:
        """Bytes and alignment of a type in std430, which is how shared memory is counted."""
        op, operands = self._types[id_]
        if op == BOOL:
            return 4, 4
        if op in (INT, FLOAT):
            return operands[0] // 8, operands[0] // 8
        if op == VECTOR:
            of, count = self._size(operands[0], words)[0], operands[1]
            return of * count, of * (4 if count == 3 else count)
        if op == ARRAY:
            nbytes, align = self._size(operands[0], words)
            return _whole(nbytes, align) * self._word(operands[1], words), align
        assert op == STRUCT, f"shared memory of type {op}"
        at, most = 0, 1
        for member in operands:
            nbytes, align = self._size(member, words)
            at, most = _whole(at, align) + nbytes, max(most, align)
        return _whole(at, most), most

    # ---- constants

    def _word(self, id_: int, words: Sequence[int]) -> int:
        """The word that a constant comes to with these specialization words, in the order of constant_id."""
        op, (_, *operands) = self._values[id_]
        number = self._decorations.get(id_, {}).get(SPEC_ID)
        if number is not None and number[0] < len(words):
            return words[number[0]]
        if op in (TRUE, SPEC_TRUE, FALSE, SPEC_FALSE):
            return int(op in (TRUE, SPEC_TRUE))
        if op in (CONSTANT, SPEC_CONSTANT):
            return operands[0]
        assert op == SPEC_OP, f"a constant by instruction {op}"
        operation, *given = operands
        if operation == _EXTRACT:
            (whole, part) = given
            return self._word(self._values[whole][1][1 + part], words)
        return int(_OPERATIONS[operation](*(self._word(one, words) for one in given))) & 0xFFFF_FFFF

    def _constants(self) -> dict[int, Constant]:
        found = {}
        for id_, (op, (type_, *operands)) in self._values.items():
            number = self._decorations.get(id_, {}).get(SPEC_ID)
            if number is not None and id_ not in self._local:
                default = op == SPEC_TRUE if op in (SPEC_TRUE, SPEC_FALSE) else self._scalar(type_, operands[0])
                found[number[0]] = Constant(self._names.get(id_, ""), self._type(type_), default)
        return found

    # ---- uses

    def used(self) -> set[str]:
        """Names of the views, push constants and specialization constants that a function uses, also by way of another
        constant or a type."""
        types = {id_: type_ for id_, type_, _ in self._variables}
        todo, seen = list(self._used), set[int]()
        while todo:
            id_ = todo.pop()
            if id_ not in seen:
                seen.add(id_)
                todo += self._parts(id_, types)
        found = {self._names[id_] for id_ in seen if SPEC_ID in self._decorations.get(id_, {}) and id_ in self._names}
        for id_, block in self._blocks(STORAGE_BUFFER):
            found |= {self._members[block, 0]} if id_ in seen else set()
        found |= {self._names[id_] for id_, _ in self._blocks(UNIFORM_CONSTANT) if id_ in seen}
        for id_, block in self._blocks(PUSH_CONSTANT):
            members = {self._word(index, ()) for variable, index in self._chains if variable == id_}
            found |= {self._members[block, member] for member in members}
        return found

    def _parts(self, id_: int, types: Mapping[int, int]) -> Sequence[int]:
        """Ids that a type, a constant or a variable is made of."""
        if id_ in types:
            return (types[id_],)
        if id_ in self._types:
            op, operands = self._types[id_]
            return operands[1:2] if op == POINTER else operands[: _IDS_OF_TYPE.get(op, 0)]
        op, operands = self._values.get(id_, (0, ()))
        if op == SPEC_OP:
            return operands[2:3] if operands[1] == _EXTRACT else operands[2:]
        return operands[1:] if op in (COMPOSITE, SPEC_COMPOSITE) else ()

    # ---- variables

    def _blocks(self, storage: int) -> Iterator[tuple[int, int]]:
        """Variables of a storage class with their types."""
        return ((id_, type_) for id_, type_, of in self._variables if of == storage)

    def _views(self) -> dict[tuple[int, int], tuple[View, ...]]:
        found: dict[tuple[int, int], tuple[View, ...]] = {}
        for id_, block in self._blocks(STORAGE_BUFFER):
            known = self._decorations[id_]
            op, members = self._types[block]
            assert op == STRUCT and len(members) == 1, f"{self._names.get(block)}: not one array"
            array, (element, *_) = self._types[members[0]]
            assert array == RUNTIME_ARRAY
            said = known.keys() | self._of_member.get((block, 0), {}).keys()
            promises = {NON_READABLE: "writeonly", NON_WRITABLE: "readonly", RESTRICT: "restrict", COHERENT: "coherent"}
            view = View(
                self._members[block, 0],
                self._type(element),
                frozenset(text for decoration, text in promises.items() if decoration in said),
            )
            where = known[SET][0], known[BINDING][0]
            found[where] = (*found.get(where, ()), view)
        for id_, type_ in self._blocks(UNIFORM_CONSTANT):
            known = self._decorations[id_]
            promises = {NON_READABLE: "writeonly", NON_WRITABLE: "readonly", RESTRICT: "restrict"}
            said_of = frozenset(text for decoration, text in promises.items() if decoration in known)
            where = known[SET][0], known[BINDING][0]
            found[where] = (*found.get(where, ()), View(self._names[id_], self._texture(type_), said_of))
        return found

    def _texture(self, id_: int) -> str:
        """The type of a texture in GLSL's words."""
        op, operands = self._types[id_]
        if op == SAMPLED_IMAGE:
            return f"sampler{_DIMS[self._types[operands[0]][1][1]]}"
        assert op == IMAGE, f"a constant of type {op}"
        return f"{_FORMATS[operands[6]]} image{_DIMS[operands[1]]}"

    def _push(self) -> tuple[Member, ...]:
        found = []
        for _, block in self._blocks(PUSH_CONSTANT):
            for number, member in enumerate(self._types[block][1]):
                op, operands = self._types[member]
                element, count = (operands[0], self._word(operands[1], ())) if op == ARRAY else (member, 1)
                (offset,) = self._of_member[block, number][OFFSET]
                found.append(Member(self._members[block, number], self._type(element), offset, count))
        return tuple(found)

    def shared_bytes(self, words: Sequence[int]) -> int:
        """Bytes of shared memory with these specialization words, in the order of constant_id."""
        at = 0
        for _, type_ in self._blocks(WORKGROUP):
            nbytes, align = self._size(type_, words)
            at = _whole(at, align) + nbytes
        return at


def _text(words: Sequence[int]) -> str:
    return struct.pack(f"<{len(words)}I", *words).split(b"\0")[0].decode()


def _whole(nbytes: int, align: int) -> int:
    return -(-nbytes // align) * align
