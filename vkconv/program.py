"""Programs: the launches that a route makes of kernels, and the buffers between them, as data. No Vulkan here."""

import dataclasses
import struct
from collections.abc import Callable, Mapping, Sequence

from vkconv.call import Call
from vkconv.core import ShaderError
from vkconv.kernel import Access, Binding, Field, Shader
from vkconv.texture import Texture

Word = int | float | bool
Argument = Word | Sequence[Word]

_MAX_F32 = 3.4028234663852886e38


@dataclasses.dataclass(frozen=True, slots=True)
class Range:
    """Bytes of a buffer that a launch binds in place of all of them, as a program written for f32 counts them."""

    offset: int
    nbytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Bind:
    """One binding: which buffer or texture of the program, how the shader uses it, and what part of it is bound;
    None: all of it."""

    buffer: str
    access: Access
    range: Range | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Dispatch:
    """One launch: arguments by the names that the kernel declares.

    ``buffers`` maps each binding to a buffer of the program, or to None where the constants are such that the shader
    does not touch it (Vulkan wants one all the same: another one of the launch is bound). ``push`` and ``constants``
    map push and specialization constants to their values (constants that are left out have the kernel's default; ints
    and bools travel as 32-bit integers, floats as f32). ``groups`` is workgroups, ``local`` invocations of one, in x, y
    and z. ``loop_iterations`` is the most that one invocation makes, all its loops together, where that grows with the
    shapes. ``ranges`` has, by binding, the part of its buffer that is bound, where that is not all of it. ``pushes``:
    its push constants stay such also where a plan makes those of others constants of their pipelines
    (vkconv/plan/fixing.py).

    Raises ShaderError for a name that the kernel does not have, or one that is missing.
    """

    shader: Shader
    buffers: Mapping[str, str | None]
    groups: tuple[int, int, int]
    local: tuple[int, int, int]
    push: Mapping[str, Argument] = dataclasses.field(default_factory=dict)
    constants: Mapping[str, Word] = dataclasses.field(default_factory=dict)
    shared_bytes: int = 0
    loop_iterations: int = 0
    ranges: Mapping[str, Range] = dataclasses.field(default_factory=dict)
    pushes: bool = False

    def __post_init__(self) -> None:
        interface, key = self.shader.interface, self.shader.key
        _match(key, "binds", self.buffers, [b.name for b in interface.bindings])
        _match(key, "takes the push constants", self.push, [f.name for f in interface.push])
        _match(key, "takes the constants", self.constants, [f.name for f in interface.constants], all_=False)
        _match(key, "has ranges of", self.ranges, [b.name for b in interface.bindings], all_=False)

    @property
    def binds(self) -> tuple[Bind, ...]:
        """Buffers in the order of their bindings, set 0, and how each is used."""
        declared = self.shader.interface.bindings
        read_first = sorted(declared, key=lambda binding: binding.access != "r")

        def bind(binding: Binding) -> Bind:
            bound = binding.name
            if not self.buffers[bound]:
                bound = next(b.name for b in read_first if b.kind == binding.kind and self.buffers[b.name])
            return Bind(self.buffers[bound] or "", binding.access, self.ranges.get(bound))

        return tuple(map(bind, declared))

    @property
    def spec_words(self) -> tuple[int, ...]:
        """All specialization constants as u32 bits, constant_id order."""
        declared = self.shader.interface.constants
        values = (self.constants[f.name] if f.name in self.constants else _default(f) for f in declared)
        return tuple(word_bits(w) for w in (*self.local, *values))

    @property
    def push_words(self) -> tuple[int, ...]:
        """The push constants as u32 bits, in order."""
        words: list[int] = []
        for field in self.shader.interface.push:
            values = _flat(self.push[field.name])
            if len(values) != field.count:
                raise ShaderError(
                    f"{self.shader.key}: the push constant {field.name} has {field.count} words, given {len(values)}"
                )
            words += (word_bits(float(w) if field.type == "float" else w) for w in values)
        return tuple(words)

    @property
    def push_bytes(self) -> bytes:
        words = self.push_words
        return struct.pack(f"<{len(words)}I", *words)

    @property
    def push_size(self) -> int:
        """Bytes of the push constants."""
        return 4 * sum(field.count for field in self.shader.interface.push)

    def renamed(self, names: Mapping[str, str]) -> "Dispatch":
        """The launch on buffers of other names; those that are not in ``names`` keep theirs."""
        buffers = {binding: buffer and names.get(buffer, buffer) for binding, buffer in self.buffers.items()}
        return dataclasses.replace(self, buffers=buffers)


def _match(key: str, what: str, given: Mapping[str, object], declared: Sequence[str], all_: bool = True) -> None:
    unknown = [n for n in given if n not in declared]
    missing = [n for n in declared if n not in given] if all_ else []
    if unknown or missing:
        wrong = f"{', '.join(unknown)} is none of them" if unknown else f"{', '.join(missing)} is missing"
        raise ShaderError(f"{key} {what} {', '.join(declared) or 'none'}; {wrong}")


def _flat(value: Argument) -> tuple[Word, ...]:
    return (value,) if isinstance(value, int | float) else tuple(value)


def _default(field: Field) -> Word:
    if field.type == "bool":
        return field.default == "true"
    return float(field.default) if field.type == "float" else int(field.default)


def word_bits(value: Word) -> int:
    """The u32 bits of an int (two's complement), bool or float (f32); ValueError, saying what fits, past these."""
    if isinstance(value, float):
        try:
            return int(struct.unpack("<I", struct.pack("<f", value))[0])
        except OverflowError:
            raise ValueError(f"the number {value}, and shaders take f32, at most {_MAX_F32}") from None
    if not -(1 << 31) <= value < 1 << 32:
        raise ValueError(f"the number {value}, and shaders take 32 bits, {-(1 << 31)} to {(1 << 32) - 1}")
    return int(value) & 0xFFFFFFFF


@dataclasses.dataclass(frozen=True)
class Program:
    """What a route runs for one call.

    ``steps`` run at every inference; ``prepack`` runs once, when its operands are constants. Buffer names are
    the call's operand and output names, plus ``packed`` (made by prepack, kept with the session) and
    ``scratch`` (contents undefined before and after), each name to bytes. ``elements`` are those of them that hold
    elements of the call as they are, no sums: in calls of 16-bit floats they have 16 bits too (vkconv/storage.py).
    ``textures`` are those of ``packed`` and ``scratch`` that are no buffers, each with its extent; the launch that
    stores one stores all texels that others sample, and drops what it held.
    """

    steps: tuple[Dispatch, ...]
    prepack: tuple[Dispatch, ...] = ()
    packed: Mapping[str, int] = dataclasses.field(default_factory=dict)
    scratch: Mapping[str, int] = dataclasses.field(default_factory=dict)
    elements: frozenset[str] = frozenset()
    textures: Mapping[str, Texture] = dataclasses.field(default_factory=dict)

    def within(self, ranges: Mapping[str, Range]) -> "Program":
        """The program where steps bind a part of some buffers in place of all of them."""

        def bound(step: Dispatch) -> Dispatch:
            parts = {name: ranges[buffer] for name, buffer in step.buffers.items() if buffer and buffer in ranges}
            inside = {name: step.ranges.get(name, Range(0, part.nbytes)) for name, part in parts.items()}
            more = {name: Range(parts[name].offset + r.offset, r.nbytes) for name, r in inside.items()}
            return dataclasses.replace(step, ranges={**step.ranges, **more}) if more else step

        return dataclasses.replace(self, steps=tuple(map(bound, self.steps)))

    def renamed(self, names: Mapping[str, str]) -> "Program":
        """The program on buffers of other names; those that are not in ``names`` keep theirs."""
        return Program(
            tuple(step.renamed(names) for step in self.steps),
            tuple(step.renamed(names) for step in self.prepack),
            {names.get(name, name): nbytes for name, nbytes in self.packed.items()},
            {names.get(name, name): nbytes for name, nbytes in self.scratch.items()},
            frozenset(names.get(name, name) for name in self.elements),
            {names.get(name, name): texture for name, texture in self.textures.items()},
        )


@dataclasses.dataclass(frozen=True)
class Inner:
    """A place in a program for that of an inner call, by the name that its route gives it (`Route.inner`). ``buffers``
    maps the call's operands and outputs to buffers of the program; names that are not there stay. ``call`` is another
    call for the same choice, as the last of several passes is. ``first`` has, by operand and output of the call, the
    element of its buffer with which it begins, where it is a part of that."""

    name: str
    buffers: Mapping[str, str]
    call: Call | None = None
    first: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def ranges(self, call: Call) -> dict[str, Range]:
        """What its program binds of buffers of which the call is a part."""
        specs = call.specs
        return {name: Range(first * specs[name].dtype.nbytes, specs[name].nbytes) for name, first in self.first.items()}


@dataclasses.dataclass(frozen=True)
class Composite:
    """A `Program` with places for those of inner calls among its steps."""

    steps: tuple[Dispatch | Inner, ...]
    prepack: tuple[Dispatch, ...] = ()
    packed: Mapping[str, int] = dataclasses.field(default_factory=dict)
    scratch: Mapping[str, int] = dataclasses.field(default_factory=dict)
    elements: frozenset[str] = frozenset()
    textures: Mapping[str, Texture] = dataclasses.field(default_factory=dict)

    @property
    def own(self) -> Program:
        """Without the inner calls."""
        steps = tuple(step for step in self.steps if isinstance(step, Dispatch))
        return Program(steps, self.prepack, self.packed, self.scratch, self.elements, self.textures)

    def linked(self, own: Program, built: Callable[[Inner], Program]) -> Program:
        """The program with what ``built`` makes of each inner call in its place; ``own`` is this one's part in the form
        that it takes. What is packed for nothing but to be packed again by an inner call is scratch."""
        steps: list[Dispatch] = []
        prepack, packed, scratch = list(own.prepack), dict(own.packed), dict(own.scratch)
        elements, textures = set(own.elements), dict(own.textures)
        remaining, places = iter(own.steps), 0
        for step in self.steps:
            if isinstance(step, Dispatch):
                steps.append(next(remaining))
                continue
            program, places = built(step), places + 1
            names = {name: f"{step.name}.{name}" for name in program.scratch}
            names |= {name: f"{step.name}.{name}" for name in program.packed}
            first = all(names[name] not in packed for name in program.packed)
            program = program.renamed({**names, **step.buffers})
            steps += program.steps
            prepack += program.prepack if first else ()
            packed |= program.packed
            scratch |= {name: max(nbytes, scratch.get(name, 0)) for name, nbytes in program.scratch.items()}
            elements |= program.elements
            textures |= program.textures
        used = {buffer for step in steps for buffer in step.buffers.values()}
        passing = {name: nbytes for name, nbytes in packed.items() if name not in used}
        kept = {name: nbytes for name, nbytes in packed.items() if name in used}
        return Program(tuple(steps), tuple(prepack), kept, {**scratch, **passing}, frozenset(elements), textures)

    def linked_to(self, program: Program) -> Program:
        """The program where its one inner call is this program, which is in the same form."""
        return self.linked(self.own, lambda inner: program)


Made = Program | Composite
"""What a route makes for a call."""
