"""Whatever vkconv reads is a target of the fuzzers, or nobody else's: each reader is listed here with its targets."""

import ast
import sys
from pathlib import Path

import pytest
from cli_kit import ROOT
from targets import TARGETS, without_processes

pytestmark = pytest.mark.long

# Calls that take in what a file or another program holds, by how their names end.
READING = (
    *("read_text", "read_bytes", "open", "read_cache", "read_array", "json.loads", "json.load", "json.decode"),
    *("toml.decode", "tomllib.load", "tomllib.loads", "np.load", "np.fromfile", "csv.reader", "csv.DictReader"),
    *(
        "ParseFromString",
        "GetRootAsModel",
        "onnx.load",
        "onnx.load_model_from_string",
        "ElementTree.parse",
        "ElementTree.fromstring",
    ),
    *("os.read", "safe_open"),
)
SHIPPED = "data of the installation, which SECURITY.md trusts"
OWN = "what this vkconv, or a process that it started of itself, wrote a moment ago"
SYSTEM = "/proc"
CHECKED = "held to a checksum"
WRITES = "opened to be written, or to be locked"
APART = "ONNX's C++ code, in a process of its own that may end: tests/pure/test_onnx_files.py"
KERNEL = "SPIR-V that vkconv compiled"
DRIVER = "for the driver, which is trusted: vkconv does not read it"
PLAIN = "bytes that are copied or passed on, not read"

READERS: dict[str, str | tuple[str, ...]] = {
    "backend/runtime.py LiveDevice.__init__": DRIVER,
    "backend/runtime.py LiveDevice.save_pipeline_cache": DRIVER,
    "bench/suites.py _cells": ("table",),
    "bench/suites.py read_suite": ("suite", "table"),
    "bench/suites.py suite_title": SHIPPED,
    "cli/__init__.py _drop_output": WRITES,
    "cli/__init__.py main": WRITES,
    "cli/inputs.py _read": ("array",),
    "cli/loader.py library_of": ("driver",),
    "cli/phone.py _outputs": OWN,
    "cli/probe.py answer_of": ("driver",),
    "compiler.py _prebuilt": CHECKED,
    "compiler.py read_index": ("spirv",),
    "compiler.py spirv": CHECKED,
    "compilers/blocks.py _optimized": OWN,
    "compilers/estimate.py pipes_of": SHIPPED,
    "compilers/first_choices.py _golden_f16": SHIPPED,
    "compilers/first_choices.py compile_words": OWN,
    "compilers/first_choices.py read_choices": SHIPPED,
    "compilers/gpus.py data": SHIPPED,
    "compilers/gpus.py tried": SHIPPED,
    "compilers/installed.py Installed.__init__": ("set",),
    "compilers/installed.py Installed._icd": OWN,
    "compilers/installed.py Installed.program": SHIPPED,
    "compilers/live.py _by_vkconv": OWN,
    "compilers/live.py _python_libraries": SYSTEM,
    "compilers/packages.py Apt.download": CHECKED,
    "compilers/runner.py answer_of": ("compiled",),
    "compilers/runner.py read_kept": ("compiled",),
    "core.py _remove_leftover": WRITES,
    "core.py _replacing": WRITES,
    "core.py atomic_write": WRITES,
    "device/evidence.py load_evidence": SHIPPED,
    "device/evidence.py read_evidence": SHIPPED,
    "device/files.py read_json": ("device", "report"),
    "device/numbers.py _assumed_rows": SHIPPED,
    "files.py available_bytes": SYSTEM,
    "files.py read_cache": ("spirv", "compiled"),
    "files.py read_model_file": ("onnx", "pte", "tflite"),
    "files.py read_result_as": ("result", "checks"),
    "glsl.py interface_dir": OWN,
    "glsl.py read_source": SHIPPED,
    "glsl.py whole_text.text": SHIPPED,
    "glslang.py _explain": SHIPPED,
    "glslang.py _locate": SHIPPED,
    "glslang.py compile_shader": OWN,
    "graph/onnx/proto.py _read_from": ("onnx",),
    "graph/onnx/proto.py parsed": ("onnx",),
    "graph/onnx/proto.py run_apart": APART,
    "graph/onnx/worker.py _main": APART,
    "graph/onnx/worker.py bodies": APART,
    "graph/tflite/reader.py _Reader.__init__": ("tflite",),
    "graph/vkc.py _constant": ("vkc",),
    "graph/vkc.py _encode": OWN,
    "graph/vkc.py _load": ("vkc", "graph"),
    "graph/vkc.py _parse_json": ("vkc", "graph"),
    "graph/vkc.py load_vkc": ("vkc", "graph"),
    "pages/__init__.py whole": SHIPPED,
    "phone/build.py _identity": SHIPPED,
    "phone/build.py _prebuilt": SHIPPED,
    "phone/board.py Board._results": OWN,
    "phone/board.py device_of": ("report",),
    "phone/board.py open_board": PLAIN,
    "phone/board.py unpack": ("archive",),
    "phone/build.py compile_player": OWN,
    "phone/told.py read_line": ("told",),
    "phone/transport.py Transport._lines": PLAIN,
    "plan/measured.py locked": WRITES,
    "plan/measured.py read_table": ("measured",),
    "policy.py tables": SHIPPED,
}
# Readers of texts and bytes that are given, which no such call shows.
TEXTS: dict[str, tuple[str, ...]] = {
    "bench/miopen.py miopen_calls": ("suite",),
    "bench/suites.py parse_entries": ("suite",),
    "cli/bench.py parse_dtype": ("options",),
    "cli/bench.py parse_local": ("options",),
    "cli/conform.py parse_storages": ("options",),
    "cli/inputs.py parse_input": ("options",),
    "cli/options.py parse_bounds": ("options",),
    "cli/options.py parse_bytes": ("options",),
    "cli/options.py parse_dtypes": ("options",),
    "cli/options.py parse_floats": ("options",),
    "cli/options.py parse_io_dtype": ("options",),
    "cli/options.py parse_params": ("options",),
    "cli/options.py parse_passes": ("options",),
    "cli/options.py parse_routes": ("options",),
    "cli/options.py parse_shapes": ("options",),
    "cli/outputs.py parse_outputs": ("options",),
    "compilers/packages.py parse_digests": ("shell",),
    "compilers/packages.py parse_uris": ("shell",),
    "graph/pte/flatbuffer.py Bytes.number": ("pte",),
    "graph/pte/program.py _Reader.__init__": ("pte",),
    "graph/pte/values.py elements": ("pte",),
    "graph/pte/vulkan.py read_blob": ("pte",),
    "ops/core/calls.py parse_call": ("call", "suite", "measured"),
    "ops/core/calls.py parse_shape": ("call", "options"),
    "phone/build.py abi_of": ("options",),
    "phone/results.py kept_output": ("archive",),
    "phone/transport.py devices_of": ("shell",),
    "phone/transport.py transports": ("options",),
    "spirv.py capabilities": ("spirv",),
    "workers.py parse_url": ("options",),
}


def functions_that(calls: "tuple[str, ...]") -> set[str]:
    """Functions of vkconv with a call whose name ends so, each as its module and its own name."""
    found = set()

    def look(node: ast.AST, at: tuple[str, ...], module: str) -> None:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if isinstance(child, ast.Call):
                called = ast.unparse(child.func)
                if any(called == name or called.endswith(f".{name}") for name in calls):
                    found.add(f"{module} {'.'.join(at)}")
            look(child, (*at, child.name) if named else at, module)

    for path in (ROOT / "vkconv").rglob("*.py"):
        look(ast.parse(path.read_text()), (), str(path.relative_to(ROOT / "vkconv")))
    return found


def test_every_reader_is_listed():
    found = functions_that(READING)
    assert found - READERS.keys() == set(), "list what these read: targets of tests/fuzz, or why none is needed"
    assert READERS.keys() - found == set(), "these read nothing any more"
    named = {name for names in READERS.values() if isinstance(names, tuple) for name in names}
    named |= {name for names in TEXTS.values() for name in names}
    assert named == TARGETS.keys(), "each target is there for a reader"


def test_every_parser_of_texts_is_listed():
    """By their names: parse_ and a word, public."""
    found = set()
    for path in (ROOT / "vkconv").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("parse_"):
                found.add(f"{path.relative_to(ROOT / 'vkconv')} {node.name}")
    assert found - TEXTS.keys() == set()


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_reaches_its_readers(name, monkeypatch):
    """Whole seeds of a target call every function that names it."""
    from vkconv.graph.onnx import proto

    monkeypatch.setattr(proto, "run_apart", proto.run_apart)
    without_processes()
    seeds, called = TARGETS[name].seeds(), set()
    inside = str(ROOT / "vkconv")

    def note(frame, event, _argument):
        if event == "call" and frame.f_code.co_filename.startswith(inside):
            called.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        for seed in seeds:
            TARGETS[name].run(seed)
    finally:
        sys.setprofile(before)
    reached = {f"{Path(file).relative_to(inside)} {function}" for file, function in called}
    listed = {
        place for place, names in (*READERS.items(), *TEXTS.items()) if isinstance(names, tuple) and name in names
    }
    assert listed - reached == set()
