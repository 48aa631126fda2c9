"""Take checks away one at a time and see that a test notices: ``python tools/mutations.py [CLASS ...]``.

Each row changes one line in a copy of the checkout and runs the test that should fail then, and pass without the
change. It prints the table of docs/reliability.md. A row takes seconds, those of the device up to minutes.
"""

import argparse
import dataclasses
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
COPIED = ("vkconv", "shaders", "tests", "tools", "cmake", "examples", "docs", "pyproject.toml", "SECURITY.md")


@dataclasses.dataclass(frozen=True)
class Row:
    """What is taken away: ``old`` of a file, of which ``new`` is left; the test that fails, and its environment."""

    kind: str
    what: str
    file: str
    old: str
    new: str
    test: str
    environment: tuple[tuple[str, str], ...] = ()


ROWS = (
    Row(
        "loaders",
        "external data stays in the model's folder",
        "vkconv/graph/onnx/proto.py",
        "if not location or not file.is_relative_to(folder.resolve()):",
        "if not location:",
        "tests/pure/test_hostile_files.py::test_external_data_stays_in_the_folder_and_is_a_file",
    ),
    Row(
        "loaders",
        "the most nodes of a model",
        "vkconv/graph/onnx/proto.py",
        "if len(model.graph.node) > MAX_NODES:",
        "if False:",
        "tests/pure/test_hostile_files.py::test_too_many_nodes",
    ),
    Row(
        "loaders",
        "what local functions come to",
        "vkconv/graph/onnx/functions.py",
        "if whole.nodes > MAX_NODES:",
        "if False:",
        "tests/pure/test_onnx_functions.py::test_a_million_nodes_of_1300_bytes_are_refused_at_once",
    ),
    Row(
        "loaders",
        "the most objects of a file",
        "vkconv/graph/vkc.py",
        "if objects > most_objects or len(pairs) > most_objects:",
        "if False:",
        "tests/pure/test_vkc.py::test_tensors_and_keys_have_bounds",
    ),
    Row(
        "devices",
        "the fields of a matrix",
        "vkconv/device/files.py",
        '"cooperativeMatrices": _MATRICES',
        '"cooperativeMatrices": _OBJECTS',
        "tests/pure/test_device.py::test_wrong_fields_are_refused",
    ),
    Row(
        "files",
        "links are followed",
        "vkconv/core.py",
        "Path(os.path.realpath(path))",
        "path",
        "tests/pure/test_output_files.py::test_a_link_is_followed",
    ),
    Row(
        "files",
        "the mode of a file stays",
        "vkconv/core.py",
        "os.fchmod(file.fileno(), found.st_mode & 0o777)",
        "pass",
        "tests/pure/test_output_files.py::test_the_mode_is_kept",
    ),
    Row(
        "files",
        "a failed write leaves nothing behind",
        "vkconv/core.py",
        "        temporary.unlink(missing_ok=True)\n        raise\n",
        "        raise\n",
        "tests/pure/test_file_faults.py::test_whichever_operation_fails_the_file_is_whole",
    ),
    Row(
        "files",
        "what appears is on the disk",
        "vkconv/core.py",
        "            os.fsync(file.fileno())\n",
        "",
        "tests/pure/test_file_faults.py::test_whichever_operation_fails_the_file_is_whole",
    ),
    Row(
        "files",
        "a full disk is a ModelError",
        "vkconv/graph/vkc.py",
        "            file.write(data)\n    except OSError as error:",
        "            file.write(data)\n    except RuntimeError as error:",
        "tests/pure/test_file_faults.py::test_whichever_operation_fails_the_file_is_whole",
    ),
    Row(
        "loaders",
        "arrays without pickles",
        "vkconv/cli/inputs.py",
        "allow_pickle=False",
        "allow_pickle=True",
        "tests/pure/test_security.py::test_nothing_in_a_file_is_executed",
    ),
    Row(
        "loaders",
        "dimensions beside one of 0",
        "vkconv/core.py",
        "nbytes = math.prod(d for d in shape if d) * dtype.nbytes",
        "nbytes = math.prod(shape) * dtype.nbytes",
        "tests/pure/test_hostile_files.py::test_empty_tensors_of_impossible_shapes",
    ),
    Row(
        "loaders",
        "the memory that is free",
        "vkconv/files.py",
        "if free is not None and nbytes > free:",
        "if False:",
        "tests/pure/test_vkc_refusals.py::test_a_file_of_more_than_the_memory_is_refused",
    ),
    Row(
        "loaders",
        "a loaded file is in memory",
        "vkconv/graph/vkc.py",
        "array = read_array(file, begin + tensor.data_offsets[0], tuple(tensor.shape), dtype)",
        'array = np.memmap(path, dtype.numpy, "r", begin + tensor.data_offsets[0], tuple(tensor.shape))',
        "tests/pure/test_vkc.py::test_a_loaded_file_may_be_cut_short_or_go",
    ),
    Row(
        "loaders",
        "hard links of external data",
        "vkconv/graph/onnx/proto.py",
        "if others := _other_names(file):",
        "if others := 0:",
        "tests/pure/test_onnx_files.py::test_external_data_is_no_other_files_hard_link",
    ),
    Row(
        "loaders",
        "opsets that came later",
        "vkconv/graph/onnx/importer.py",
        "    if not newer:\n        who",
        "    if False:\n        who",
        "tests/pure/test_onnx_files.py::test_an_opset_that_came_later_is_taken_on_request",
    ),
    Row(
        "loaders",
        "outputs are what they are declared as",
        "vkconv/graph/ir.py",
        'if fits and self.dtype in ("", found.dtype):',
        "if True:",
        "tests/pure/test_onnx_files.py::test_a_declared_output_is_what_its_nodes_make",
    ),
    Row(
        "loaders",
        "ONNX's C++ code has a process of its own",
        "vkconv/graph/onnx/proto.py",
        'graph = (run or run_apart)("infer", slim).graph',
        'graph = (run or worker.run)("infer", slim).graph',
        "tests/pure/test_onnx_files.py::test_a_model_that_onnx_aborts_on_is_refused",
    ),
    Row(
        "loaders",
        "the user's limit of the address space",
        "vkconv/graph/onnx/worker.py",
        "(min(known), hard)",
        "(_MEMORY_BYTES, _MEMORY_BYTES)",
        "tests/pure/test_onnx_files.py::test_a_limit_of_the_address_space_is_kept_to_not_raised",
    ),
    Row(
        "loaders",
        "the size of a file of results",
        "vkconv/files.py",
        "> _MAX_RESULT_BYTES:",
        "> 1 << 60:",
        "tests/pure/test_compare_checks.py::test_a_file_of_any_size_is_refused_unread",
    ),
    Row(
        "devices",
        "a device file that is no JSON",
        "vkconv/device/files.py",
        "except (ValueError, RecursionError) as error:",
        "except RecursionError as error:",
        "tests/pure/test_fuzz.py::test_mutants_are_taken_or_refused[device]",
    ),
    Row(
        "files",
        "devices are written to",
        "vkconv/core.py",
        "if stream is None and (found is None or stat.S_ISREG(found.st_mode)):",
        "if stream is None:",
        "tests/pure/test_output_files.py::test_a_device_stays_one",
    ),
    Row(
        "chooser",
        "a forced route must be right",
        "vkconv/route.py",
        "        if not verdict.allowed:\n            raise RouteError(",
        "        if False:\n            raise RouteError(",
        "tests/pure/test_route.py::test_a_forced_route_skips_prefer_and_never_must",
    ),
    Row(
        "chooser",
        "a measured route must be right",
        "vkconv/route.py",
        "{v.route.name: v for v in verdicts if v.allowed and (",
        "{v.route.name: v for v in verdicts if (",
        "tests/pure/test_route.py::test_a_measured_route_outranks_prefer_and_never_must",
    ),
    Row(
        "chooser",
        "the fastest of the measured",
        "vkconv/route.py",
        "key=lambda candidate: candidate.us_median))",
        "key=lambda candidate: -candidate.us_median))",
        "tests/pure/test_route.py::test_the_fastest_measured_route_that_can_run_is_taken_with_its_parameters",
    ),
    Row(
        "chooser",
        "measured parameters must be legal",
        "vkconv/route.py",
        "            if value not in legal[name]:",
        "            if False:",
        "tests/pure/test_route.py::test_measured_parameters_that_are_no_longer_legal_are_ignored",
    ),
    Row(
        "chooser",
        "a rule needs all that it prefers",
        "vkconv/route.py",
        "    for need in route.prefer:\n        if not need.test(call, device):",
        "    for need in route.prefer:\n        if False:",
        "tests/pure/test_route.py::test_the_first_route_whose_every_need_holds_wins",
    ),
    Row(
        "chooser",
        "what a quirk avoids is no rule's choice",
        "vkconv/route.py",
        "if against := device.avoids(call.op, route.name, route.seen(call)):",
        'if against := "":',
        "tests/pure/test_route.py::test_routes_for_those_who_ask_and_what_quirks_avoid_are_no_rules_choice",
    ),
    Row(
        "chooser",
        "sums in f16 are asked for",
        "vkconv/route.py",
        "if route.f16_depth is not None and not half_sums:",
        "if False:",
        "tests/pure/test_route.py::test_routes_for_those_who_ask_and_what_quirks_avoid_are_no_rules_choice",
    ),
    Row(
        "chooser",
        "a route runs if its inner calls do",
        "vkconv/route.py",
        "if refused := refused_inside(route, call, device):",
        "if refused := None:",
        "tests/pure/test_route.py::test_a_route_whose_inner_call_no_route_takes_cannot_run",
    ),
    Row(
        "typing",
        "a buffer is read as it was written",
        "vkconv/storage.py",
        "            if not _agree(made, taken):",
        "            if False:",
        "tests/pure/test_typed_programs.py::test_scratch_that_two_launches_write_in_two_forms_is_refused",
    ),
    Row(
        "typing",
        "scratch of sums stays f32",
        "vkconv/storage.py",
        'return buffer in program.elements or buffer in program.textures or types.get(buffer or "") in HALVES',
        "return True",
        "tests/pure/test_storage.py::test_what_is_scratch_stays_f32_and_elements_halve",
    ),
    Row(
        "typing",
        "bits of one width agree, others do not",
        "vkconv/storage.py",
        "made is taken or (made.nbytes == taken.nbytes and (",
        "made is taken or ((",
        "tests/pure/test_typed_programs.py::test_bits_are_moved_by_the_width_of_what_holds_them",
    ),
    Row(
        "caches",
        "the owner of a cached file",
        "vkconv/files.py",
        "return found.st_uid in (os.geteuid(), 0) and",
        "return",
        "tests/pure/test_cache_files.py::test_a_file_or_folder_of_another_user_is_nothing",
    ),
    Row(
        "caches",
        "links and pipes in a cache",
        "vkconv/files.py",
        "os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC",
        "os.O_RDONLY | os.O_CLOEXEC",
        "tests/pure/test_cache_files.py::test_what_is_no_file_of_this_user_is_nothing",
    ),
    Row(
        "caches",
        "the checksum of cached SPIR-V",
        "vkconv/compiler.py",
        "return code if is_spirv(code) and hashlib.sha256(code).hexdigest() == sha256 else",
        "return code if is_spirv(code) else",
        "tests/pure/test_compiler.py::test_a_damaged_cache_file_is_a_miss",
    ),
    Row(
        "caches",
        "programs of the current folder",
        "vkconv/compiler.py",
        "[folder for folder in folders if folder.is_absolute()]",
        "list(folders)",
        "tests/pure/test_compiler.py::test_nothing_is_run_from_the_current_folder",
    ),
    Row(
        "names",
        "cells of tables",
        "vkconv/table.py",
        'return printable(" ".join(str(value).split("\\n")))',
        'return " ".join(str(value).split("\\n"))',
        "tests/pure/test_hostile_names.py::test_a_table_shows_no_name_raw",
    ),
    Row(
        "names",
        "lines of commands",
        "vkconv/cli/output.py",
        "            print(printable(part), file=stream)",
        "            print(part, file=stream)",
        "tests/pure/test_hostile_names.py::test_a_command_shows_no_name_raw",
    ),
    Row(
        "names",
        "HTML in Markdown",
        "vkconv/table.py",
        "html.escape(printable(text), quote=False)",
        "printable(text)",
        "tests/pure/test_hostile_names.py::test_markdown_and_html_show_the_text",
    ),
    Row(
        "semantics",
        "constant indices out of range",
        "vkconv/plan/bound.py",
        "op.check_constants(bound.call, fixed)",
        "pass",
        "tests/pure/test_bind.py::test_a_constant_index_out_of_range_is_refused",
    ),
    Row(
        "semantics",
        "given indices out of range",
        "vkconv/session.py",
        "                check.run(there)\n",
        "                pass\n",
        "tests/gpu/test_integers.py::test_given_indices_outside_the_axis_are_refused_before_the_run",
    ),
    Row(
        "numbers",
        "large arguments of sin",
        "shaders/include/math.glsl",
        "    if (abs(x) < 4096.0) {\n        float k = roundEven(x * 0.63661977);",
        "    if (true) {\n        float k = roundEven(x * 0.63661977);",
        "tests/gpu/test_numbers.py::test_a_function_is_as_near_as_the_table_says[sin]",
    ),
    Row(
        "numbers",
        "rows whose squares leave the range",
        "shaders/reduce/reduce.comp",
        "if (!is_one(peak)) total = squares_again(base, peak);",
        "",
        "tests/gpu/test_numbers.py::test_rows_are_right_where_float64_fits[reduce:x=3x5x7,op=l2,axes=1-1e20-f32]",
    ),
    Row(
        "memory",
        "the budget of a plan",
        "vkconv/plan/limits.py",
        "if memory.peak_bytes > budget_bytes:",
        "if False:",
        "tests/pure/test_memory_option.py::test_a_plan_may_take_all_that_is_allowed_and_no_byte_more",
    ),
    Row(
        "memory",
        "what constants may fold to",
        "vkconv/plan/bound.py",
        "if not op.alias and _made_bytes(node) > _fold_limit(node, constants, left_bytes):",
        "if False:",
        "tests/pure/test_memory_option.py::test_a_matrix_that_is_made_of_a_shape_alone_has_the_limit_of_constants",
    ),
    Row(
        "device faults",
        "a lost device is opened anew",
        "vkconv/backend/runtime.py",
        "self._live.lost = True",
        "pass",
        "tests/gpu/test_faults.py::test_a_lost_device_ends_its_sessions_and_a_new_one_works",
    ),
    Row(
        "concurrency",
        "files appear by a rename",
        "vkconv/core.py",
        "temporary.replace(path)",
        "path.write_bytes(temporary.read_bytes()), temporary.unlink()",
        "tests/pure/test_killed_writers.py::test_a_killed_writer_leaves_a_whole_file_or_none",
    ),
    Row(
        "concurrency",
        "unfinished files of the living stay",
        "vkconv/core.py",
        "            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n            path.unlink()",
        "            path.unlink()",
        "tests/pure/test_killed_writers.py::test_the_next_writer_removes_what_a_killed_one_left_and_nothing_else",
    ),
    Row(
        "fuzzing",
        "the bytes that a shape may have (kept mutants)",
        "vkconv/core.py",
        "if nbytes >= MAX_BYTES:",
        "if False:",
        "tests/pure/test_fuzz.py::test_what_once_broke_a_target_no_longer_does",
    ),
    Row(
        "fuzzing",
        "values live until their last reader (random graphs)",
        "vkconv/plan/lowering.py",
        "last[self.homes.home(self.root(value))[0]] = index",
        "last.setdefault(self.homes.home(self.root(value))[0], index)",
        "tests/gpu/test_random_graphs.py",
    ),
    Row(
        "validation",
        "barriers (synchronization validation)",
        "vkconv/plan/commands.py",
        "            yield conflict\n",
        "",
        "tests/gpu/test_random_graphs.py::test_graphs_of_a_narrow_theme_agree_with_the_references",
    ),
    Row(
        "validation",
        "the tail of a kernel (GPU-assisted validation)",
        "shaders/movement/gather.comp",
        "    if (index >= invocations) return;\n",
        "",
        "tests/gpu/test_ops.py::test_route_agrees_with_the_reference[gather:x=7,indices=3:i32-gather-integers]",
        (("VKCONV_TEST_VALIDATION", "gpu"),),
    ),
    Row(
        "soak",
        "a closed session lets its buffers go",
        "vkconv/backend/executable.py",
        "        self._buffers.clear()\n",
        '        self.live.__dict__.setdefault("kept", []).append(self._buffers)\n',
        "tests/gpu/test_faults.py::test_cycles_with_and_without_failures_leave_no_memory_behind",
    ),
    Row(
        "supply",
        "a hash of a locked package",
        "tools/requirements-3.11.lock",
        "    --hash=sha256:0a30ef8f5322a4173720ae6712dc9a5e58f5a19868f3f167b4b5778db066c2b5 \\\n"
        "    --hash=sha256:6bc31bbbec6dfaaedc1676dbc11dbda96fe22a2b5c400e9ebad113fec44a9dc6\n",
        "",
        "tests/pure/test_supply.py::test_every_line_of_the_lock_file_is_a_version_with_hashes",
    ),
)


# Every process that a test starts reads this. An editable installation's finder would import the checkout's modules,
# whatever the path says, and what no longer looks at the memory that is free must not take all of it.
AT_START = """
import resource, sys
sys.meta_path = [f for f in sys.meta_path if type(f).__name__ != 'ScikitBuildRedirectingFinder']
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
if hard == resource.RLIM_INFINITY:
    resource.setrlimit(resource.RLIMIT_AS, (64 << 30, hard))
"""


def copied(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text(AT_START)
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "peers"))
        else:
            shutil.copy(ROOT / name, folder / name)
    if not list((folder / "vkconv" / "backend").glob("_bridge*.so")):
        found = importlib.util.find_spec("vkconv.backend._bridge")
        assert found is not None and found.origin is not None
        shutil.copy(found.origin, folder / "vkconv" / "backend")
        kp = Path(found.origin).parent / "kompute"
        shutil.copytree(kp, folder / "vkconv" / "backend" / "kompute", dirs_exist_ok=True)


def fails(folder: Path, row: Row) -> bool:
    """Whether the test fails, or its process is ended by a signal; SystemExit where it did not run at all."""
    environment = {**os.environ, "PYTHONPATH": str(folder), **dict(row.environment)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", row.test]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    if done.returncode > 1:
        raise SystemExit(f"{row.test} did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return bool(done.returncode)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="CLASS", help="default: all of them")
    parser.add_argument("--mutants-only", action="store_true", help="do not run the tests on the unchanged copy first")
    options = parser.parse_args()
    unnoticed = 0
    print("| class | taken away | in | test that fails |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copied(folder)
        for row in ROWS:
            if options.kinds and row.kind not in options.kinds:
                continue
            file = folder / row.file
            whole = file.read_text()
            if whole.count(row.old) != 1:
                raise SystemExit(f"{row.file} has {row.old!r} {whole.count(row.old)} times; mend the row")
            if not options.mutants_only and fails(folder, row):
                raise SystemExit(f"{row.test} fails without the change, too")
            file.write_text(whole.replace(row.old, row.new))
            noticed = fails(folder, row)
            file.write_text(whole)
            unnoticed += not noticed
            test = row.test if noticed else "NONE"
            print(f"| {row.kind} | {row.what} | `{row.file}` | `{test}` |", flush=True)
    return bool(unnoticed)


if __name__ == "__main__":
    sys.exit(main())
