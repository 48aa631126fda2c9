"""Kernels as declarations: what a shader binds, is given and is specialized by, each by name and type. No Vulkan here.

A `Kernel` is declared once, in vkconv/shaders, whose modules mirror the folders of shaders/. The interface block of its
GLSL is made from that (`Shader.glsl`, which shaders/include/common.glsl includes), launches name their arguments after
it (vkconv/program.py), and a test holds every built SPIR-V module against it.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Literal, TypeVar

from vkconv.core import DType

Access = Literal["r", "w", "rw"]
Scalar = Literal["int", "uint", "float", "bool"]
Kind = Literal["buffer", "sampled", "stored"]
Argument = TypeVar("Argument")

# Specialization constants 0 to 2 are the workgroup's size.
FIRST_CONSTANT = 3


class Form(StrEnum):
    """What the elements of a buffer are to the kernel that binds it."""

    ELEMENT = "elements of the call"
    """Of the variant's own type: two bytes each where a call is f16 or bf16."""
    F32 = "f32"
    """What the kernel computes with, f32 for all floats: partial sums, statistics."""
    EITHER = "elements of the call or f32"
    """Elements, or f32 in the variant that its `Binding.f32_define` makes."""
    WORDS = "words"
    """Words that mean what the kernel's constants say: integers, packed bytes, what is cast."""
    TEXELS = "texels"
    """Of a texture, four floats each: of 16 bits where the variant is of f16, else of f32."""


@dataclasses.dataclass(frozen=True, slots=True)
class Binding:
    """One storage buffer of a kernel, or one texture, which it samples (``sampler3D x``) or stores (``image3D x``).

    ``views`` are the GLSL arrays over it (``ELEM x``, ``ELEM4 x4``). It is there in variants that meet ``when``:
    defines, by name or as ``NAME=value``, with ``!`` those that must be absent. ``f32_define`` is the define that makes
    an EITHER f32, ``f32_constant`` the constant that does so where it is above 1.
    """

    name: str
    access: Access
    form: Form
    views: tuple[str, ...]
    when: tuple[str, ...] = ()
    qualifiers: str = "restrict"
    f32_define: str = ""
    f32_constant: str = ""

    @property
    def kind(self) -> Kind:
        """What Vulkan has it for: a storage buffer, a sampled image, a storage image."""
        if self.form is not Form.TEXELS:
            return "buffer"
        return "sampled" if self.access == "r" else "stored"

    @property
    def dims(self) -> int:
        """Dimensions of a texture."""
        return 3 if "3D" in self.views[0] else 2


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A push constant or a specialization constant: its GLSL type and name; ``default`` of a specialization constant,
    ``count`` of an array of push constants. It is there in variants that meet ``when``, as a `Binding` is."""

    type: Scalar
    name: str
    default: str = ""
    count: int = 1
    when: tuple[str, ...] = ()

    @property
    def default_value(self) -> float | int:
        """The default of a specialization constant as a number."""
        if self.type == "bool":
            return int(self.default == "true")
        return float(self.default) if self.type == "float" else int(self.default)


# What every variant of f16 is told: whether the device's own conversion rounds as shaders/include/halves.glsl does.
PACKS_HALVES = Field("bool", "PACKS_HALVES", "false")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A shader's source, ``<name>.comp``, and its interface. Bindings, push constants and specialization constants are
    numbered in the order in which they stand. ``moves`` is True where it only moves bits, so that any elements of the
    same width will do; ``matrices`` where it multiplies cooperative matrices, of which there are none of f32.
    ``subgroups`` are the defines of variants whose invocations meet in subgroups, of a size that the launch knows:
    empty for all of them, None for none."""

    name: str
    bindings: tuple[Binding, ...] = ()
    push: tuple[Field, ...] = ()
    constants: tuple[Field, ...] = ()
    moves: bool = False
    matrices: bool = False
    subgroups: tuple[str, ...] | None = None

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Kernel) or self.name != other.name:  # most that differ do by name, which is fast
            return False
        return dataclasses.astuple(self) == dataclasses.astuple(other)

    def __hash__(self) -> int:
        return hash(self.name)


@dataclasses.dataclass(frozen=True, slots=True)
class Shader:
    """One compiled variant of a kernel: its element type and its preprocessor defines. A name stands for a kernel whose
    interface is not declared."""

    kernel: Kernel
    dtype: DType = DType.F32
    defines: tuple[tuple[str, str], ...] = ()

    def __init__(self, kernel: Kernel | str, dtype: DType = DType.F32, defines: Iterable[tuple[str, str]] = ()) -> None:
        object.__setattr__(self, "kernel", Kernel(kernel) if isinstance(kernel, str) else kernel)
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "defines", tuple(defines))

    @property
    def stem(self) -> str:
        """Name of the kernel and of its source file."""
        return self.kernel.name

    @property
    def key(self) -> str:
        """File-safe name of the variant, unique among variants: ``reduce.f32.OP_max``."""
        return ".".join([self.stem, self.dtype, *(f"{k}_{v}" if v else k for k, v in self.defines)])

    def having(self, *defines: tuple[str, str]) -> "Shader":
        """The variant with these defines too."""
        return Shader(self.kernel, self.dtype, (*self.defines, *defines))

    @property
    def interface(self) -> "Interface":
        """What this variant binds and takes."""
        return _interface(self)

    @property
    def subgroups(self) -> bool:
        """Whether its invocations meet in subgroups, whose size it is told."""
        defines, wanted = {name for name, _ in self.defines}, self.kernel.subgroups
        return self.kernel.matrices or (wanted is not None and defines.issuperset(wanted))

    def taking(self, arguments: Mapping[str, Argument]) -> dict[str, Argument]:
        """Those of the arguments of some variant of the kernel that this one takes, as a launch wants them."""
        absent = _names(self.kernel) - _names(self.interface)
        return {name: value for name, value in arguments.items() if name not in absent}

    @property
    def glsl(self) -> str:
        """The interface as GLSL declarations."""
        return "\n".join(_lines(self.interface)) + "\n"


@dataclasses.dataclass(frozen=True, slots=True)
class Interface:
    """What one variant binds and takes, in the order of its numbers."""

    bindings: tuple[Binding, ...]
    push: tuple[Field, ...]
    constants: tuple[Field, ...]

    @property
    def kinds(self) -> str:
        """What each binding is to Vulkan, in letters: b a storage buffer, s a sampled image, i a storage image."""
        return "".join(_LETTERS[binding.kind] for binding in self.bindings)


_LETTERS: Mapping[Kind, str] = {"buffer": "b", "sampled": "s", "stored": "i"}


@functools.lru_cache(maxsize=4096)
def _names(of: Kernel | Interface) -> frozenset[str]:
    return frozenset((*(b.name for b in of.bindings), *(field.name for field in (*of.push, *of.constants))))


@functools.lru_cache(maxsize=4096)
def _interface(shader: Shader) -> Interface:
    defined = {name for name, _ in shader.defines} | {f"DTYPE_{shader.dtype}"}
    defined |= {f"{name}={value}" for name, value in shader.defines}

    def there(when: tuple[str, ...]) -> bool:
        return all(name[1:] not in defined if name.startswith("!") else name in defined for name in when)

    kernel = shader.kernel
    constants = (*kernel.constants, PACKS_HALVES) if shader.dtype is DType.F16 else kernel.constants
    return Interface(
        tuple(binding for binding in kernel.bindings if there(binding.when)),
        tuple(field for field in kernel.push if there(field.when)),
        tuple(field for field in constants if there(field.when)),
    )


def _lines(interface: Interface) -> Iterator[str]:
    yield "layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;"
    for number, field in enumerate(interface.constants, FIRST_CONSTANT):
        yield f"layout(constant_id = {number}) const {field.type} {field.name} = {field.default};"
    if interface.push:
        yield "layout(push_constant) uniform Push {"
        for field in interface.push:
            yield f"    {field.type} {field.name}{f'[{field.count}]' if field.count > 1 else ''};"
        yield "};"
    for number, binding in enumerate(interface.bindings):
        if binding.form is Form.TEXELS:
            how = "" if binding.kind == "sampled" else f", TEXEL_FORMAT) writeonly {binding.qualifiers}"
            yield f"layout(set = 0, binding = {number}{how or ')'} uniform {binding.views[0]};"
            continue
        of_call = binding.form in (Form.ELEMENT, Form.EITHER)
        # Packed 16-bit elements are written by atomic operations on the word around them: WRITEONLY is empty there.
        access = {"r": "readonly ", "w": "WRITEONLY " if of_call else "writeonly ", "rw": ""}[binding.access]
        for view in binding.views:
            type_, name = view.split()
            block = name.title().replace("_", "") + "Buffer"
            where = f"layout(set = 0, binding = {number}) {access}{binding.qualifiers}"
            yield f"{where} buffer {block} {{ {type_} {name}[]; }};"


# ---- declaring


_ELEMENTS = re.compile(r"ELEM[24]?$")
_EITHER = re.compile(r"([XY])_ELEM[24]?$")
_FLOATS = re.compile(r"(float|vec[234]|VALUE4?)$")
_TEXELS = re.compile(r"(sampler|image)[23]D$")


def _binding(
    access: Access, views: tuple[str, ...], form: Form | None, when: str, qualifiers: str, f32: str
) -> Binding:
    types = [view.split()[0] for view in views]
    either = [match for match in map(_EITHER.match, types) if match]
    if form is None:
        of_call = all(map(_ELEMENTS.match, types))
        of_f32 = all(map(_FLOATS.match, types))
        texels = all(map(_TEXELS.match, types))
        form = Form.EITHER if either else Form.ELEMENT if of_call else Form.F32 if of_f32 else Form.WORDS
        form = Form.TEXELS if texels else form
    define = f"{either[0][1]}_F32" if either else ""
    name = views[0].split()[1]
    return Binding(name, access, form, views, tuple(when.split()), qualifiers, define, f32)


def reads(*views: str, form: Form | None = None, when: str = "", qualifiers: str = "restrict") -> Binding:
    """A buffer that the kernel only reads, named after its first view; its form follows from the types of the views
    unless it is given."""
    return _binding("r", views, form, when, qualifiers, "")


def writes(
    *views: str, form: Form | None = None, when: str = "", qualifiers: str = "restrict", f32_constant: str = ""
) -> Binding:
    """A buffer that the kernel only writes, as `reads` has it."""
    return _binding("w", views, form, when, qualifiers, f32_constant)


def updates(*views: str, form: Form | None = None, when: str = "", qualifiers: str = "restrict") -> Binding:
    """A buffer that the kernel reads and writes, as `reads` has it."""
    return _binding("rw", views, form, when, qualifiers, "")


def fields(type_: Scalar, names: str, when: str = "") -> tuple[Field, ...]:
    """Push constants of one type: ``n c_in h w``, an array with its length, ``dims[8]``."""
    parts = (re.fullmatch(r"(\w+)(?:\[(\d+)\])?", name) for name in names.split())
    return tuple(Field(type_, part[1], "", int(part[2] or 1), tuple(when.split())) for part in parts if part)


def constants(type_: Scalar, when: str = "", **defaults: int | float | bool) -> tuple[Field, ...]:
    """Specialization constants of one type, each with the value it has where a launch gives none."""
    texts = {name: str(value).lower() if type_ == "bool" else str(value) for name, value in defaults.items()}
    return tuple(Field(type_, name, text, 1, tuple(when.split())) for name, text in texts.items())
