"""Floats of 16 bits, and what lies in a buffer: programs in the forms that a call's types want, each buffer read as it
was written.

Routes are written once, for f32. A call in f16 or bf16 gets the same launches in other *forms* of their shaders
(shaders/include/storage16.glsl): operands, outputs and those buffers of the program that hold elements of the call
(`Program.elements`) take two bytes an element, all arithmetic and all other scratch stay f32. Devices without 16-bit
storage take forms that read and write words of two elements. Which bindings follow the call's type, and which may be
f32, each kernel declares (`vkconv.kernel.Form`).
"""

import dataclasses
from collections.abc import Iterator, Mapping

from vkconv.call import HALVES
from vkconv.core import DType, ShaderError
from vkconv.device import Device
from vkconv.kernel import PACKS_HALVES, Binding, Form, Shader
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program, Range

# The feature by which 16-bit elements are read and written by themselves.
NATIVE = ("VkPhysicalDevice16BitStorageFeatures", "storageBuffer16BitAccess")
PACKED = ("PACKED", "")
# What multiplies in f16, shaders/include/products.glsl: declared as of f16, since there is no other type for it.
HALF_MATH = ("HALF_MATH", "")
Y_F32 = ("Y_F32", "")
_PACKS_HALVES = Policy("kernels.packs_halves", bool)


def stores_natively(device: Device) -> bool:
    """Whether the device reads and writes 16-bit elements of a buffer by themselves."""
    return device.feature(*NATIVE)


def _is_written_once(shader: Shader) -> bool:
    """Whether it stands for all its forms: of f32 or of words, or with products in f16."""
    return shader.dtype in (DType.F32, DType.U32) or HALF_MATH in shader.defines


def _f32_defines(shader: Shader) -> tuple[str, ...]:
    """Defines that make an operand or output of the variant f32 where the others have 16 bits."""
    if shader.dtype is DType.U32:
        return ()
    return tuple(dict.fromkeys(b.f32_define for b in shader.interface.bindings if b.f32_define))


def _types(shader: Shader) -> tuple[DType, ...]:
    """The 16-bit types of its forms. Shaders of words that only move them take any two bytes."""
    if shader.dtype is DType.U32 and shader.kernel.moves:
        return (DType.U16,)
    return (DType.F16,) if HALF_MATH in shader.defines else HALVES


def _form(shader: Shader, dtype: DType, packed: bool, *defines: str) -> Shader:
    dtype = dtype if dtype in _types(shader) else _types(shader)[0]
    added = [*((name, "") for name in defines if (name, "") not in shader.defines), *([PACKED] if packed else [])]
    return Shader(shader.kernel, dtype, (*shader.defines, *added))


def forms(shader: Shader) -> Iterator[Shader]:
    """Every form that a shader of f32, of words, of products in f16 or of matrices may take for calls of 16-bit
    floats."""
    if shader.kernel.matrices:
        yield from (dataclasses.replace(shader, dtype=dtype) for dtype in HALVES)
    if not _is_written_once(shader):
        return
    for dtype in _types(shader):
        for packed in (False, True):
            yield _form(shader, dtype, packed)
            yield from (_form(shader, dtype, packed, define) for define in _f32_defines(shader))


def stored(program: Program, types: Mapping[str, DType], dtype: DType, device: Device) -> Program:
    """The program, written for f32, for operands and outputs of these element types, where floats are ``dtype``."""
    packed = not stores_natively(device)
    told = {PACKS_HALVES.name: int(_PACKS_HALVES.of(device))} if dtype is DType.F16 else {}

    def is_half(buffer: str | None) -> bool:
        return buffer in program.elements or buffer in program.textures or types.get(buffer or "") in HALVES

    def form(dispatch: Dispatch) -> Dispatch:
        shader = dispatch.shader
        if shader.kernel.matrices:
            of_matrices = dataclasses.replace(shader, dtype=dtype)
            return dataclasses.replace(dispatch, shader=of_matrices, constants={**dispatch.constants, **told})
        if not _is_written_once(shader) or not any(map(is_half, dispatch.buffers.values())):
            return dispatch
        bound = [(b, dispatch.buffers[b.name]) for b in shader.interface.bindings]
        wide = dict.fromkeys(b.f32_define for b, buffer in bound if b.f32_define and buffer and not is_half(buffer))
        formed = _form(shader, dtype, packed, *wide)
        constants = {**dispatch.constants, **told} if formed.dtype is DType.F16 else dispatch.constants
        return dataclasses.replace(dispatch, shader=formed, constants=constants)

    def ranged(dispatch: Dispatch) -> Dispatch:
        """With its ranges in bytes of the buffers as they are."""
        ranges = {
            name: Range(part.offset // 4 * dtype.nbytes, part.nbytes // 4 * dtype.nbytes)
            if is_half(dispatch.buffers[name])
            else part
            for name, part in dispatch.ranges.items()
        }
        return dataclasses.replace(dispatch, ranges=ranges) if ranges else dispatch

    def size(name: str, nbytes: int) -> int:
        if name in program.textures:  # there are no texels of bf16: those of f32 hold them
            return nbytes // 2 if dtype is DType.F16 else nbytes
        return nbytes // 4 * dtype.nbytes if name in program.elements else nbytes

    def sizes(of: Mapping[str, int]) -> dict[str, int]:
        return {name: size(name, nbytes) for name, nbytes in of.items()}

    steps, prepack = (tuple(ranged(form(d)) for d in dispatches) for dispatches in (program.steps, program.prepack))
    kept, scratch = sizes(program.packed), sizes(program.scratch)
    return Program(steps, prepack, kept, scratch, program.elements, program.textures)


def binding_type(dispatch: Dispatch, binding: Binding) -> DType | None:
    """What a launch takes the elements of a buffer for; None where that is up to the kernel's constants."""
    shader = dispatch.shader
    computed = DType.F32 if shader.dtype in HALVES else shader.dtype
    if binding.form is Form.WORDS:
        return None
    if binding.form is Form.F32:
        return computed
    if binding.form is Form.TEXELS:
        return DType.F16 if shader.dtype is DType.F16 else DType.F32
    if binding.form is Form.EITHER:
        counted = int(dispatch.constants.get(binding.f32_constant, 1)) > 1
        if counted or (binding.f32_define, "") in shader.defines:
            return computed
    return shader.dtype


# What kernels that look at bits alone say of elements, whatever these are: their width.
_BITS = (DType.U16, DType.U32, DType.I64)


def _agree(made: DType, taken: DType) -> bool:
    """Whether elements of one type may be taken for another: of what looks at bits alone only the width counts."""
    return made is taken or (made.nbytes == taken.nbytes and (made in _BITS or taken in _BITS))


def _moved(dispatch: Dispatch, held: Mapping[str, DType]) -> DType | None:
    """What a launch that moves bits moves: what the buffer holds that it reads; words beside it, as indices are, may be
    anything."""
    bindings = (b for b in dispatch.shader.interface.bindings if b.access == "r" and b.form is not Form.WORDS)
    read = (dispatch.buffers[b.name] for b in bindings)
    return next((held[buffer] for buffer in read if buffer is not None and buffer in held), None)


def check_types(program: Program, types: Mapping[str, DType]) -> None:
    """ShaderError where a launch reads or writes a buffer in another form than it has: operands and outputs in their
    ``types``, scratch and packed buffers as the launch that writes them first has it, textures as what they are."""
    held = dict(types)
    for dispatch in (*program.prepack, *program.steps):
        moved = _moved(dispatch, held) if dispatch.shader.kernel.moves else None
        for binding in dispatch.shader.interface.bindings:
            buffer, taken = dispatch.buffers[binding.name], binding_type(dispatch, binding)
            _check_kind(dispatch, binding, buffer, program)
            if buffer is None or taken is None:
                continue
            if moved and binding.access == "w" and taken.nbytes == moved.nbytes:
                taken = moved
            made = held.setdefault(buffer, taken)
            if made in _BITS:
                held[buffer] = taken
            if not _agree(made, taken):
                raise ShaderError(
                    f"{dispatch.shader.key} takes {buffer!r} at its binding {binding.name!r} for {taken}, "
                    f"and it holds {made}: a fault of the route, not of the call"
                )


def _check_kind(dispatch: Dispatch, binding: Binding, buffer: str | None, program: Program) -> None:
    """ShaderError where a launch takes a buffer for a texture, a texture for a buffer, or one of other dimensions."""
    if buffer is None:
        return
    texture = program.textures.get(buffer)
    wanted = f"a {binding.dims}-D texture" if binding.form is Form.TEXELS else "a buffer"
    held = f"a {texture.dims}-D texture" if texture else "a buffer"
    if wanted != held:
        raise ShaderError(
            f"{dispatch.shader.key} takes {buffer!r} at its binding {binding.name!r} for {wanted}, and it is {held}: "
            "a fault of the route, not of the call"
        )
