"""glslang as a library, for builds that compile a thousand variants: what glslangValidator takes 110 ms for, mostly to
parse GLSL's built-in functions, takes 14 ms where they are parsed already.

The structs of its C interface change from version to version, and a crash in it is one of this process: known versions
are used, and by builds alone. The SPIR-V is that of glslangValidator, byte for byte.
"""

import ctypes
import functools
import threading
from collections.abc import Sequence
from pathlib import Path

KNOWN = ("13.1.1",)
"""Versions whose structs are those below."""

_GLSL, _COMPUTE, _VULKAN, _SPIRV, _NO_PROFILE = 1, 5, 1, 1, 1
_VULKAN_1_1, _SPIRV_1_3 = 1 << 22 | 1 << 12, 1 << 16 | 3 << 8
_SPIRV_RULES, _VULKAN_RULES = 1 << 3, 1 << 4
# GLSL without a #version line, which all of ours have.
_DEFAULT_VERSION = 100


class _Input(ctypes.Structure):
    """glslang_input_t."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("language", "stage", "client", "client_version")),
        *((name, ctypes.c_int) for name in ("target_language", "target_language_version")),
        ("code", ctypes.c_char_p),
        *((name, ctypes.c_int) for name in ("default_version", "default_profile")),
        *((name, ctypes.c_int) for name in ("force_default_version_and_profile", "forward_compatible", "messages")),
        *((name, ctypes.c_void_p) for name in ("resource", "include_system", "include_local", "free_include_result")),
        ("callbacks_ctx", ctypes.c_void_p),
    )


class Glslang:
    """The library, from one folder. Calls from several threads go beside each other."""

    def __init__(self, folder: Path, version: str) -> None:
        """Raises OSError where it does not load."""
        for needed in folder.glob("libSPIRV-Tools-shared.so"):
            ctypes.CDLL(str(needed), mode=ctypes.RTLD_GLOBAL)
        self._front, self._back, self._limits = (
            ctypes.CDLL(str(folder / f"{name}.so.{version}"), mode=ctypes.RTLD_GLOBAL)
            for name in ("libglslang", "libSPIRV", "libglslang-default-resource-limits")
        )
        for library, name, result in (
            (self._front, "glslang_shader_create", ctypes.c_void_p),
            (self._front, "glslang_program_create", ctypes.c_void_p),
            (self._back, "glslang_program_SPIRV_get_size", ctypes.c_size_t),
            (self._back, "glslang_program_SPIRV_get_ptr", ctypes.c_void_p),
            (self._limits, "glslang_default_resource", ctypes.c_void_p),
        ):
            getattr(library, name).restype = result
        self._front.glslang_initialize_process()
        self._first = threading.Lock()
        self._ready = False

    def compile(self, text: str, defines: Sequence[str]) -> bytes:
        """SPIR-V 1.3 of a compute shader, its includes already in place; nothing where it does not compile."""
        with self._first:  # the one that parses the built-in functions for all
            if not self._ready:
                self._ready = True
                return self._compile(text, defines)
        return self._compile(text, defines)

    def _compile(self, text: str, defines: Sequence[str]) -> bytes:
        rules = _SPIRV_RULES | _VULKAN_RULES
        # Both are read later, from where they are.
        code = text.encode()
        preamble = "".join(f"#define {define.replace('=', ' ', 1)}\n" for define in defines).encode()
        given = _Input(
            language=_GLSL,
            stage=_COMPUTE,
            client=_VULKAN,
            client_version=_VULKAN_1_1,
            target_language=_SPIRV,
            target_language_version=_SPIRV_1_3,
            code=code,
            default_version=_DEFAULT_VERSION,
            default_profile=_NO_PROFILE,
            messages=rules,
            resource=self._limits.glslang_default_resource(),
        )
        shader = ctypes.c_void_p(self._front.glslang_shader_create(ctypes.byref(given)))
        program = ctypes.c_void_p(self._front.glslang_program_create())
        try:
            self._front.glslang_shader_set_preamble(shader, preamble)
            for step in (self._front.glslang_shader_preprocess, self._front.glslang_shader_parse):
                if not step(shader, ctypes.byref(given)):
                    return b""
            self._front.glslang_program_add_shader(program, shader)
            if not self._front.glslang_program_link(program, rules):
                return b""
            self._back.glslang_program_SPIRV_generate(program, _COMPUTE)
            words = self._back.glslang_program_SPIRV_get_size(program)
            return ctypes.string_at(self._back.glslang_program_SPIRV_get_ptr(program), 4 * words)
        finally:
            self._front.glslang_program_delete(program)
            self._front.glslang_shader_delete(shader)


@functools.cache
def library(folder: Path) -> Glslang | None:
    """The library of a known version in a folder; None where there is none that loads."""
    for version in KNOWN:
        if (folder / f"libglslang.so.{version}").is_file():
            try:
                return Glslang(folder, version)
            except (OSError, AttributeError):
                return None
    return None
