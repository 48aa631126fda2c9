"""Every shipped SPIR-V module against the declaration of its kernel.

glslang keeps each variable and specialization constant that is declared, used or not, so that module and declaration
have to be equal. What a variant does not use is dead, and so is refused here, unless kernels share it as one block.
"""

import dataclasses
import functools
from collections.abc import Iterator

import pytest
from reflection import Constant, Member, Module, View

from vkconv.compiler import spirv
from vkconv.core import DType
from vkconv.kernel import (
    FIRST_CONSTANT,
    PACKS_HALVES,
    Binding,
    Form,
    Interface,
    Kernel,
    Shader,
    constants,
    fields,
    reads,
)
from vkconv.ops import all_shaders
from vkconv.shaders.reduce import REDUCE_ROWS
from vkconv.spirv import instructions, words_of
from vkconv.storage import PACKED

SHIPPED = all_shaders()
KERNELS = {kernel.name: kernel for kernel in sorted({s.kernel for s in SHIPPED}, key=lambda kernel: kernel.name)}

# GLSL types of the macros of shaders/include/common.glsl, by element type: ELEM, ELEM2, ELEM4, VALUE, VALUE4.
ELEMENTS = {
    DType.F32: ("float", "vec2", "vec4", "float", "vec4"),
    DType.U32: ("uint", "uvec2", "uvec4", "uint", "uvec4"),
    DType.I32: ("int", "ivec2", "ivec4", "int", "ivec4"),
    DType.I64: ("uvec2", "uvec4", "uvec4", "uvec2", "uvec4"),
    DType.F16: ("uint16_t", "uint", "uvec2", "float", "vec4"),
    DType.BF16: ("uint16_t", "uint", "uvec2", "float", "vec4"),
    DType.U16: ("uint16_t", "uint", "uvec2", "uint", "uvec4"),
}
DEFAULTS = {"bool": lambda text: text == "true", "int": int, "uint": int, "float": float}


def glsl_type(shader: Shader, text: str) -> str:
    """What a type of a declaration stands for in a variant."""
    operand, _, kind = text.rpartition("_")
    kinds = dict(zip(("ELEM", "ELEM2", "ELEM4", "VALUE", "VALUE4"), ELEMENTS[shader.dtype], strict=True))
    if operand and (f"{operand}_F32", "") in shader.defines:
        kinds |= {"ELEM": "float", "ELEM2": "vec2", "ELEM4": "vec4"}
    elif PACKED in shader.defines:
        kinds["ELEM"] = "uint"
    return kinds.get(kind, text)


def view(shader: Shader, binding: Binding, text: str) -> View:
    type_, name = text.split()
    if binding.kind == "sampled":
        return View(name, type_, frozenset())
    if binding.kind == "stored":
        texels = "rgba16f" if shader.dtype is DType.F16 else "rgba32f"
        return View(name, f"{texels} {type_}", frozenset({"writeonly", *binding.qualifiers.split()}))
    access = {"r": {"readonly"}, "w": {"writeonly"}, "rw": set()}[binding.access]
    if binding.access == "w" and binding.form in (Form.ELEMENT, Form.EITHER) and PACKED in shader.defines:
        access = set()
    return View(name, glsl_type(shader, type_), frozenset({*access, *binding.qualifiers.split()}))


def differences(shader: Shader, interface: Interface, module: Module) -> Iterator[str]:
    """What a module has other than the interface says, in words."""

    def compare(what: str, declared: object, found: object) -> Iterator[str]:
        if declared != found:
            yield f"{shader.key}: {what}: declared {declared}, the module has {found}"

    declared = {(0, number): binding for number, binding in enumerate(interface.bindings)}
    yield from compare("sets and bindings", sorted(declared), sorted(module.views))
    for where, binding in declared.items():
        views = {view(shader, binding, text) for text in binding.views}
        yield from compare(f"binding {where[1]}, {binding.name}", views, {*module.views.get(where, ())})
    offset, members = 0, []
    for field in interface.push:
        members.append(Member(field.name, field.type, offset, field.count))
        offset += 4 * field.count
    yield from compare("push constants", tuple(members), module.push)
    yield from compare("ids of the workgroup's size", (0, 1, 2), module.local_size_ids)
    values = {
        number: Constant(field.name, field.type, DEFAULTS[field.type](field.default))
        for number, field in enumerate(interface.constants, FIRST_CONSTANT)
    }
    found = dict(sorted(module.constants.items()))
    for number in sorted(values.keys() | found.keys()):
        yield from compare(f"constant {number}", values.get(number), found.get(number))


@functools.cache
def module(shader: Shader) -> Module:
    return Module(spirv(shader), shader.key)


def variants(kernel: Kernel) -> list[Shader]:
    return [shader for shader in SHIPPED if shader.stem == kernel.name]


@pytest.mark.long
@pytest.mark.parametrize("name", KERNELS)
def test_modules_have_what_their_kernel_declares(name: str) -> None:
    assert KERNELS[name].bindings
    assert not [text for s in variants(KERNELS[name]) for text in differences(s, s.interface, module(s))]


# ---- the comparison itself


def test_modules_for_devices_without_16_bit_storage_too() -> None:
    shader = Shader(REDUCE_ROWS, DType.BF16, (("REDUCTION_TREE", ""), PACKED))
    assert not list(differences(shader, shader.interface, Module(spirv(shader))))


def changed(*, bindings: object = None, push: object = None, constant: object = None) -> Interface:
    declared = Shader(REDUCE_ROWS, DType.F32, (("REDUCTION_TREE", ""),)).interface
    return dataclasses.replace(
        declared,
        bindings=declared.bindings if bindings is None else bindings(declared.bindings),
        push=declared.push if push is None else push(declared.push),
        constants=declared.constants if constant is None else constant(declared.constants),
    )


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (changed(bindings=lambda b: b[::-1]), ["binding 0, y", "binding 2, x"]),
        (changed(bindings=lambda b: b[:2]), ["sets and bindings"]),
        (changed(bindings=lambda b: (*b, reads("float more"))), ["sets and bindings", "binding 3, more"]),
        (changed(bindings=lambda b: (dataclasses.replace(b[0], access="rw"), *b[1:])), ["binding 0, x"]),
        (changed(bindings=lambda b: (dataclasses.replace(b[0], views=b[0].views[:1]), *b[1:])), ["binding 0, x"]),
        (changed(bindings=lambda b: (dataclasses.replace(b[0], qualifiers=""), *b[1:])), ["binding 0, x"]),
        (changed(bindings=lambda b: (b[0], reads("uint peaks"), b[2])), ["binding 1, peaks"]),
        (changed(push=lambda p: (p[1], p[0], *p[2:])), ["push constants"]),
        (changed(push=lambda p: p[:-1]), ["push constants"]),
        (changed(push=lambda p: (dataclasses.replace(p[0], type="int"), *p[1:])), ["push constants"]),
        (changed(push=lambda p: (*p[:-1], dataclasses.replace(p[-1], count=4))), ["push constants"]),
        (changed(constant=lambda c: (*c[:-2], *constants("uint", LOADS=9), c[-1])), ["constant 9"]),
        (changed(constant=lambda c: (*c[:-2], *constants("int", LOADS=8), c[-1])), ["constant 9"]),
        (changed(constant=lambda c: (*c, *constants("bool", MORE=True))), ["constant 11"]),
        (changed(constant=lambda c: c[1:]), [f"constant {number}" for number in range(3, 11)]),
    ],
)
def test_another_declaration_is_told_apart(declared: Interface, said: list[str]) -> None:
    shader = Shader(REDUCE_ROWS, DType.F32, (("REDUCTION_TREE", ""),))
    found = list(differences(shader, declared, module(shader)))
    assert [text.split(": ")[1] for text in found] == said


# ---- dead arguments


@functools.cache
def used(kernel: Kernel) -> frozenset[str]:
    """Names that some variant of the kernel uses: views, push constants and specialization constants."""
    return frozenset().union(*(module(shader).used() for shader in variants(kernel)))


def of_a_block(kernel: Kernel) -> set[str]:
    """Arguments that no variant of the kernel uses, since they come with a block that kernels share: the very same
    field is another's, and used there. What the kernels include names them all."""
    others = (other for other in KERNELS.values() if other.name != kernel.name)
    elsewhere = [field for other in others for field in (*other.push, *other.constants) if field.name in used(other)]
    own = (field for field in (*kernel.push, *kernel.constants) if field.name not in used(kernel))
    return {field.name for field in own if any(field is one for one in elsewhere)}


def dead(kernel: Kernel) -> dict[str, str]:
    """What a variant declares and does not use, each with the first such variant: nothing reads it, or it wants a
    ``when``."""
    found: dict[str, str] = {}
    others = of_a_block(kernel) | {PACKS_HALVES.name}  # which every variant of f16 is told
    for shader in variants(kernel):
        interface = dataclasses.replace(shader, kernel=kernel).interface
        names = {view.split()[1] for binding in interface.bindings for view in binding.views}
        names |= {field.name for field in (*interface.push, *interface.constants)}
        found = dict.fromkeys(names - module(shader).used() - others, shader.key) | found
    return found


@pytest.mark.long
def test_what_a_variant_declares_is_used() -> None:
    found = {name: names for name, kernel in KERNELS.items() if (names := dead(kernel))}
    assert not found


@pytest.mark.parametrize(
    ("extra", "names"),
    [
        ({"push": fields("uint", "unused")}, {"unused"}),
        ({"constants": constants("bool", UNUSED=False)}, {"UNUSED"}),
        ({"bindings": (reads("float unused", "vec4 unused4"),)}, {"unused", "unused4"}),
        ({"bindings": (reads("VALUE peaks"),)}, {"peaks"}),
        ({"constants": constants("bool", when="DTYPE_i32", GIVEN_PEAK=False)}, {"GIVEN_PEAK"}),
        ({"push": fields("uint", "unused", when="NO_SUCH_VARIANT")}, set()),
    ],
)
@pytest.mark.long
def test_a_declared_argument_that_a_variant_does_not_use_is_dead(extra: dict[str, tuple], names: set[str]) -> None:
    more = {what: (*getattr(REDUCE_ROWS, what), *added) for what, added in extra.items()}
    found = dead(dataclasses.replace(REDUCE_ROWS, **more))
    assert found.keys() == names and all(key.startswith("reduce_rows.") for key in found.values())


def test_a_launch_leaves_out_what_its_variant_does_not_take() -> None:
    floats, integers = Shader(REDUCE_ROWS), Shader(REDUCE_ROWS, DType.I32)
    given = {"x": "a", "peaks": None, "y": "b", "GIVEN_PEAK": True, "mistaken": 1}
    assert floats.taking(given) == given
    assert integers.taking(given) == {"x": "a", "y": "b", "mistaken": 1}  # a Dispatch refuses what no variant has


# Capabilities of SPIR-V: GroupNonUniform to GroupNonUniformQuad, and CooperativeMatrixKHR.
BY_SUBGROUPS, OP_CAPABILITY = {*range(61, 69), 6022}, 17


@pytest.mark.long
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_whose_invocations_meet_in_subgroups_say_so(name: str) -> None:
    """A pipeline of such a variant asks for the subgroup size that it was planned for."""
    for shader in variants(KERNELS[name]):
        code = instructions(words_of(spirv(shader)), shader.key)
        capabilities = {operands[0] for op, operands in code if op == OP_CAPABILITY}
        assert shader.subgroups == bool(capabilities & BY_SUBGROUPS), shader.key
