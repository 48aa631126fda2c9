"""Modules of bf16 cooperative matrices, made from those of f16: valid, or refused where they cannot be."""

import struct
import subprocess
from pathlib import Path

import pytest

from vkconv import shaders
from vkconv.bfloat16 import with_bfloat16
from vkconv.core import DType, ShaderError
from vkconv.glslang import compile_shader
from vkconv.kernel import Shader
from vkconv.ops import all_shaders
from vkconv.shader_tools import tool_environment, tool_paths

pytestmark = pytest.mark.long

MATRIX = """#version 450
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
layout(local_size_x = 32) in;
layout(set = 0, binding = 0) buffer A { uvec4 a[]; };
layout(set = 0, binding = 1) buffer Y { float y[]; };
void main() {
    coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> left;
    coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> right;
    coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> sums = coopmat<float, gl_ScopeSubgroup, 16, 16,
        gl_MatrixUseAccumulator>(0.0);
    coopMatLoad(left, a, 0, 2, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(right, a, 0, 2, gl_CooperativeMatrixLayoutRowMajor);
    BODY
    coopMatStore(coopMatMulAdd(left, right, sums), y, 0, 16, gl_CooperativeMatrixLayoutRowMajor);
}
"""


def disassembled(code: bytes, folder: Path) -> str:
    """The module as text, once spirv-val has found it valid."""
    (folder / "code.spv").write_bytes(code)
    for tool, *arguments in (("spirv-val", "--target-env", "vulkan1.1"), ("spirv-dis", "--raw-id")):
        path = next(tool_paths(tool))
        command = [str(path), *arguments, str(folder / "code.spv")]
        done = subprocess.run(command, capture_output=True, text=True, env=tool_environment(path), timeout=60)
        assert not done.returncode, done.stdout + done.stderr
    return done.stdout


def compiled(folder: Path, body: str, dtype: DType) -> bytes:
    (folder / "matrix.comp").write_text(MATRIX.replace("BODY", body))
    return compile_shader(Shader("matrix", dtype), folder)


BF16_MATRICES = [shader for shader in all_shaders() if shader.kernel.matrices and shader.dtype is DType.BF16]


@pytest.mark.parametrize("shader", BF16_MATRICES, ids=lambda shader: shader.key)
def test_the_modules_of_bf16_are_valid_and_have_no_f16(shader: Shader, tmp_path: Path) -> None:
    lines = disassembled(compile_shader(shader), tmp_path).splitlines()
    words = [line.split("=")[-1].split() for line in lines]
    capabilities = {word[1] for word in words if word[0] == "OpCapability"}
    assert {"BFloat16TypeKHR", "BFloat16CooperativeMatrixKHR", "CooperativeMatrixKHR"} <= capabilities
    assert "Float16" not in capabilities
    assert ["OpExtension", '"SPV_KHR_bfloat16"'] in words
    floats = [word[1:] for word in words if word[0] == "OpTypeFloat" and word[1] != "32"]
    assert floats == [["16", "BFloat16KHR"]]


def test_nothing_else_of_a_module_changes(tmp_path: Path) -> None:
    f16, bf16 = (
        disassembled(compiled(tmp_path, "", dtype), tmp_path).splitlines() for dtype in (DType.F16, DType.BF16)
    )
    gone, come = ([line for line in one if line not in other] for one, other in ((f16, bf16), (bf16, f16)))
    assert len(gone) == 2 and len(come) == 4


def test_elements_go_from_bits_to_matrices_and_back(tmp_path: Path) -> None:
    body = """f16vec2 two = unpackFloat2x16(floatBitsToUint(y[1]));
    left[0] = two.y;
    y[2] = uintBitsToFloat(packFloat2x16(f16vec2(left[1], two.x)));"""
    lines = disassembled(compiled(tmp_path, body, DType.BF16), tmp_path)
    assert "OpTypeFloat 16 BFloat16KHR" in lines and "OpBitcast" in lines


def test_modules_without_16_bit_floats_stay_as_they_are() -> None:
    code = compile_shader(Shader(shaders.kernels.MATMUL_SHARED, DType.F16))
    assert with_bfloat16(code, "matmul_shared") == code


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("y[3] = float(float16_t(y[1]) * float16_t(y[2]));", "numbers of 16-bit floats by instruction 115"),
        (
            "float16_t table[2]; y[0] = gl_LocalInvocationIndex < 2 ? float(table[gl_LocalInvocationIndex]) : 0.0;",
            "numbers",
        ),
        ("y[3] = float(left[0]);", "numbers of 16-bit floats by instruction 115"),
        ("left[0] = left[1] * left[2];", "numbers of 16-bit floats by instruction 133"),
        ("y[0] = left[1] < left[2] ? 1.0 : 0.0;", "numbers of 16-bit floats by instruction 184"),
        ("y[0] = isnan(left[1]) ? 1.0 : 0.0;", "numbers of 16-bit floats by instruction 156"),
        ("left[0] = abs(left[1]);", "numbers of 16-bit floats by instruction 12"),
        ("left[0] = float16_t(2.0);", "numbers of 16-bit floats by instruction 43"),
        ("left = left + left;", "matrices of 16-bit floats by instruction 129"),
        (
            "left = coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>(1.0);",
            "numbers of 16-bit floats by inst",
        ),
        (
            "left = coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>(y[0]);",
            "numbers of 16-bit floats by inst",
        ),
    ],
)
def test_what_would_compute_in_them_is_refused(body: str, what: str, tmp_path: Path) -> None:
    assert compiled(tmp_path, body, DType.F16)
    with pytest.raises(ShaderError, match=rf"^shader matrix\.bf16 makes {what}"):
        compiled(tmp_path, body, DType.BF16)


@pytest.mark.parametrize("word", [0x0000_0011, 0x00FF_0011])
def test_words_that_are_no_module_are_refused(word: int) -> None:
    code = struct.pack("<6I", 0x07230203, 0x10300, 0, 9, 0, word)
    with pytest.raises(ShaderError, match=rf"^shader cut: word 5 of its SPIR-V, {word:#010x}, begins no instruction"):
        with_bfloat16(code, "cut")
