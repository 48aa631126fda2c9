"""What the blocks of a kernel hold: instructions by kind, as scalars, and the bytes that they move."""

import enum
from collections import defaultdict
from collections.abc import Mapping, Sequence

from vkconv.compilers.blocks import Kernel, Op
from vkconv.spirv import Instruction


class Kind(enum.StrEnum):
    """A kind of work that instructions are counted by. Arithmetic is by scalars, as today's GPUs execute it; memory is
    by instructions, whatever their width."""

    MULTIPLY = "floating multiplies"
    """Multiplications of floats, those of multiply-adds among them; also counted as arithmetic."""
    HALF = "arithmetic of 16-bit floats"
    """Also counted as arithmetic."""
    ARITHMETIC = "arithmetic"
    COMPILED = "arithmetic as compiled"
    """Arithmetic with what compilers make of divisions, conversions and addresses."""
    FLOAT = "arithmetic of floats"
    """Also counted as arithmetic."""
    INTEGER = "integers as compiled"
    """Arithmetic as compiled, without that of floats."""
    SPECIAL = "special functions"
    CONVERT = "conversions"
    MEMORY = "memory"
    """Loads, stores and atomic operations of buffers and of shared memory."""
    MATRIX = "multiply-adds of matrices"
    """Of the whole subgroup."""
    LOAD_BYTES = "bytes loaded"
    """From buffers."""
    STORE_BYTES = "bytes stored"
    """To buffers."""
    ALL = "instructions"


Mix = Mapping[Kind, float]

_UNIFORM, _STORAGE_BUFFER, _WORKGROUP = 2, 12, 4
_BUFFERS = frozenset({_UNIFORM, _STORAGE_BUFFER})
_ARITHMETIC = frozenset({*range(126, 149), *range(149, 153), *range(154, 158), *range(164, 192), *range(194, 206)})
_INTEGER_DIVISIONS = frozenset({134, 135, 137, 138, 139})
_SPECIAL = frozenset({*_INTEGER_DIVISIONS, 136, 140, 141})
# Instructions of arithmetic that one of these comes to: least squares over the ALU instructions of 230 pipelines of the
# golden calls on all routes for an Adreno 740 (Mesa 26.1.6), which give 21.6, 2.5 and 4.0.
_DIVISION_COMES_TO, _CONVERSION_COMES_TO, _ACCESS_COMES_TO = 20, 2, 4
_BY_CONSTANT_COMES_TO = 4  # a multiplication, its upper half, and shifts
_CONVERSIONS = frozenset(range(109, 117))
_ATOMICS = frozenset({*range(227, 243), 5614, 5615, 6035})
_INTEGER_DOTS = frozenset(range(4450, 4456))
_DOT, _FLOAT_MULTIPLIES = 148, frozenset({133, 142})
# GLSL.std.450: those that come to few plain instructions; the others are special functions.
_PLAIN = frozenset({*range(1, 11), *range(37, 47), *range(48, 50), *range(73, 82), 53})
_FMA = 50
_COPIES = frozenset(
    {Op.LOAD, Op.STORE, Op.ACCESS_CHAIN, Op.IN_BOUNDS_ACCESS_CHAIN, Op.VARIABLE, *range(79, 84), 124, Op.UNDEF}
)
_MATRIX_LOAD, _MATRIX_STORE, _MATRIX_MULTIPLY = 4457, 4458, 4459


def mixes_of(kernel: Kernel) -> tuple[Mix, ...]:
    """The mix of each block of a kernel."""
    reading = _Reading(kernel)
    return tuple(reading.mix(block.body) for block in kernel.blocks)


class _Reading:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._storage: dict[int, int] = {id_: storage for id_, (_, storage) in kernel.variables.items()}
        self._result_types: dict[int, int] = {}
        for block in kernel.blocks:
            for op, words in block.body:
                if len(words) > 1 and op != Op.STORE:
                    self._result_types[words[1]] = words[0]
                if op in (Op.ACCESS_CHAIN, Op.IN_BOUNDS_ACCESS_CHAIN):
                    self._storage[words[1]] = self._storage.get(words[2], 0)

    def mix(self, body: Sequence[Instruction]) -> Mix:
        counts: defaultdict[Kind, float] = defaultdict(float)
        for op, words in body:
            self._add(op, words, counts)
        divisors = [words[3] for op, words in body if op in _INTEGER_DIVISIONS]
        constant = sum(divisor in self.kernel.constants for divisor in divisors)
        made = float(_DIVISION_COMES_TO * (len(divisors) - constant) + _BY_CONSTANT_COMES_TO * constant)
        made += _CONVERSION_COMES_TO * counts[Kind.CONVERT] + _ACCESS_COMES_TO * counts[Kind.MEMORY]
        counts[Kind.COMPILED] = counts[Kind.ARITHMETIC] + made
        counts[Kind.INTEGER] = counts[Kind.COMPILED] - counts[Kind.FLOAT]
        counts[Kind.ALL] += made
        return counts

    def _add(self, op: int, words: tuple[int, ...], counts: dict[Kind, float]) -> None:
        if op in (Op.LOAD, Op.STORE):
            pointer, type_id = (words[2], words[0]) if op == Op.LOAD else (words[0], self._type_of(words[1]))
            storage = self._storage.get(pointer, 0)
            if storage in _BUFFERS or storage == _WORKGROUP:
                counts[Kind.MEMORY] += 1
                counts[Kind.ALL] += 1
            if storage in _BUFFERS:
                nbytes = self.kernel.scalars(type_id) * self.kernel.scalar(type_id)[1] / 8
                counts[Kind.LOAD_BYTES if op == Op.LOAD else Kind.STORE_BYTES] += nbytes
        elif op in _ATOMICS or op in (_MATRIX_LOAD, _MATRIX_STORE):
            counts[Kind.MEMORY] += 1
            counts[Kind.ALL] += 1
        elif op == _MATRIX_MULTIPLY:
            counts[Kind.MATRIX] += self._matrix_fma(words)
            counts[Kind.ALL] += 1
        elif op not in _COPIES and len(words) > 1 and op != Op.VARIABLE:
            self._add_computed(op, words, counts)

    def _add_computed(self, op: int, words: tuple[int, ...], counts: dict[Kind, float]) -> None:
        scalars = self.kernel.scalars(words[0])
        kind: Kind | None = None
        times = 1
        if op == Op.EXT_INST:
            kind = Kind.ARITHMETIC if words[3] in _PLAIN or words[3] == _FMA else Kind.SPECIAL
            multiplies = words[3] == _FMA
        else:
            multiplies = op in _FLOAT_MULTIPLIES or op == _DOT
            if op == _DOT:
                times = self.kernel.scalars(self._type_of(words[2]))
            if op in _SPECIAL:
                kind = Kind.SPECIAL
            elif op in _CONVERSIONS:
                kind = Kind.CONVERT
            elif op in _ARITHMETIC or op in _INTEGER_DOTS:
                kind = Kind.ARITHMETIC
        if kind:
            counts[kind] += scalars * times
        if multiplies:
            counts[Kind.MULTIPLY] += scalars * times
        scalar, bits = self.kernel.scalar(words[0])
        if kind is Kind.ARITHMETIC and scalar == Op.TYPE_FLOAT:
            counts[Kind.FLOAT] += scalars * times
            counts[Kind.HALF] += scalars * times if bits == 16 else 0
        counts[Kind.ALL] += scalars * times

    def _matrix_fma(self, words: tuple[int, ...]) -> float:
        """Rows of A times columns of A times columns of B."""
        a, b = (self.kernel.types[self._type_of(id_)] for id_ in words[2:4])
        rows, inner = (self.kernel.constants[id_][0] for id_ in a[1][3:5])
        return rows * inner * self.kernel.constants[b[1][4]][0]

    def _type_of(self, id_: int) -> int:
        return self._result_types.get(id_) or self.kernel.type_of(id_)
