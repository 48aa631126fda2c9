"""What CI installs: exact versions, each held to hashes, and all that pyproject.toml asks for."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "tools" / "requirements-3.11.lock").read_text()
ENTRY = re.compile(r"^([a-z0-9-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)


def named(requirement):
    return re.match(r"[\w-]+", requirement).group().lower().replace("_", "-")


def test_every_line_of_the_lock_file_is_a_version_with_hashes():
    rest = ENTRY.sub("", LOCK)
    assert [line for line in rest.splitlines() if line and not line.lstrip().startswith("#")] == []


def test_the_lock_file_has_what_the_project_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = {named(r) for r in (*project["dependencies"], *extras["onnx"], *extras["shaders"], *extras["dev"])}
    locked = {name for name, *_ in ENTRY.findall(LOCK)}
    assert asked - {"vkconv"} - locked == set()


def test_what_is_installed_is_held_to_the_hashes():
    assert "--require-hashes -r" in (ROOT / "tools" / "setup.sh").read_text()
    assert re.search(r"[0-9a-f]{64}", (ROOT / "cmake" / "kompute.cmake").read_text())


COMPILES = """
import json, pathlib, sys
before = {*sys.modules}
import vkconv.compiler, vkconv.ops
vkconv.compiler.build(vkconv.ops.all_shaders()[:1], pathlib.Path(sys.argv[1]))
print(json.dumps(sorted({name.partition('.')[0] for name in {*sys.modules} - before})))
"""


def test_a_build_without_a_compiler_says_what_to_install(tmp_path):
    done = subprocess.run(
        ["cmake", "-S", ROOT, "-B", tmp_path],
        env={**os.environ, "CXX": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        check=False,
    )
    told = " ".join(done.stderr.split())
    assert done.returncode and "there is no C++ compiler" in told and "apt-get install g++ make" in told


@pytest.mark.long
def test_the_build_requires_what_compiling_the_shaders_imports(tmp_path):
    """A build in a fresh environment has nothing else."""
    surroundings = {name: value for name, value in os.environ.items() if name != "VKCONV_CACHE_DIR"}
    imported = subprocess.run(
        [sys.executable, "-c", COMPILES, str(tmp_path / "spirv")],
        stdout=subprocess.PIPE,
        check=True,
        cwd=ROOT,
        env={**surroundings, "XDG_CACHE_HOME": str(tmp_path)},
    )
    packages = importlib.metadata.packages_distributions()
    found = {named(d) for name in json.loads(imported.stdout) for d in packages.get(name, ())}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = found & {named(r) for r in settings["project"]["dependencies"]}
    assert needed and needed <= {named(r) for r in settings["build-system"]["requires"]}
