"""Every sentence of README.md names the tests that show it. What no other test shows is shown here."""

import json
import os
import re
import subprocess

from cli_kit import ROOT
from hostile_names import all_commands
from named_tests import missing

from vkconv.ops import OPS

README = (ROOT / "README.md").read_text()
COMMANDS = ("tests/gpu/test_readme.py::test_the_commands_run_in_order",)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
HERE = "tests/pure/test_readme_sentences.py"
TUTORIALS = ("tests/gpu/test_readme.py::test_a_tutorial_does_what_it_says",)
LINKED = ("tests/pure/test_documents.py::test_what_a_document_points_to_is_there",)

SHOWN = {
    "A Vulkan compute runtime for convolution networks, in Python on Kompute.": (
        "tests/gpu/bridge/test_bridge_kernels.py::test_kompute_objects_are_real",
        "tests/gpu/test_light_networks.py",
    ),
    "It runs ONNX, TensorFlow Lite, ExecuTorch and torch models on Vulkan devices.": (
        "tests/gpu/test_models.py::test_agrees_with_onnxruntime",
        "tests/gpu/test_tflite.py::test_a_network",
        "tests/gpu/test_pte.py",
        "tests/gpu/test_torch_compile.py",
    ),
    "It is for engineers who test GPUs and drivers, bring networks to them, or write kernels.": TUTORIALS,
    "A convolution can be computed in many ways, its *routes*.": (f"{HERE}::test_a_convolution_has_many_routes",),
    "vkconv checks every route against a float64 reference, says why it takes one, and times them all.": (
        "tests/gpu/test_ops.py::test_route_agrees_with_the_reference",
        "tests/pure/test_registry.py::test_an_op_explains_itself",
        "tests/gpu/test_bench.py::test_every_route_has_a_row_that_is_right_or_says_why_not",
    ),
    "make run # Debian 12, Python 3.11: installs what is missing, builds, reads a line of text on the best device": (
        f"{HERE}::test_what_make_does",
        "tests/gpu/test_read_text.py::test_reads_the_line_and_agrees_with_onnxruntime",
    ),
    "make test # the same, then runs the tests": (f"{HERE}::test_what_make_does",),
    "It finds what a driver computes wrongly, and where: this one drops the last invocations of a dispatch": (
        "tests/gpu/test_picture_of_a_fault.py::test_the_fault_is_found_as_it_is_drawn",
        "tests/gpu/test_check_faults.py::test_a_planted_fault_is_found_at_its_node",
    ),
    "It says why a route is not taken, and on what evidence, also for a phone that is not here": (
        "tests/pure/test_pictures.py::test_a_picture_is_what_vkconv_says",
    ),
    "It measures each call against what the device was measured to copy and to multiply": (
        "tests/pure/test_pictures.py::test_a_picture_is_what_vkconv_says",
        "tests/gpu/test_bench.py::test_floors_are_measured_once",
    ),
    "It was tried on NVIDIA's H200 and H100 and on CPU drivers, lavapipe first.": (
        f"{HERE}::test_devices_that_it_was_tried_on_have_a_result",
    ),
    "For phones it plans, compiles and packs here, and runs the pack there by `adb`: tried on none yet.": (
        "tests/pure/test_device_files.py::test_the_devices_that_are_asked_for_are_there",
        "tests/compilers/test_real_compilers.py",
        "tests/pure/test_pack.py",
        "tests/boards/test_adb.py",
        f"{HERE}::test_devices_that_it_was_tried_on_have_a_result",
    ),
    "# is this machine usable? really runs a kernel on every device": (
        *COMMANDS,
        "tests/gpu/test_cli_gpu.py::test_doctor_runs_a_kernel_on_every_device",
    ),
    "you want to": LINKED,
    "read": LINKED,
    "install it, with a wheel or from source": (f"{HERE}::test_a_page_has_what_it_is_named_for",),
    "see commands and functions on one page": (
        "tests/gpu/test_readme.py::test_the_python_blocks_run",
        *COMMANDS,
        f"{HERE}::test_a_page_has_what_it_is_named_for",
    ),
    "find what a GPU computes wrongly": TUTORIALS,
    "run a network, and know where its time goes": (*TUTORIALS, "tests/gpu/test_notebooks.py::test_a_notebook_runs"),
    "try a kernel of your own": (*TUTORIALS, "tests/pure/test_contributing.py"),
    "compare devices, drivers or versions": (
        *TUTORIALS,
        "tests/pure/test_performance.py::test_the_tables_and_the_chart_are_what_the_results_give",
    ),
    "know what is promised": (
        "tests/pure/test_versions.py::test_the_page_of_versions_names_every_schema_that_is_kept",
        "tests/pure/test_security.py::test_a_promise_names_tests_that_are_there",
    ),
    "`make docs` builds all of this as a site, with every op, command and Python name.": (
        "tests/pure/test_docs_site.py::test_the_site_is_built_without_a_warning",
        "tests/pure/test_docs_site.py::test_every_op_and_command_has_its_place",
        "tests/pure/test_docs_site.py::test_every_public_name_is_on_the_python_page",
        f"{HERE}::test_the_site_has_all_that_the_readme_points_to",
    ),
    "LICENSE: Apache-2.0": ("tests/pure/test_documents.py::test_the_license_is_the_one_that_the_package_names",),
}


def sentences(text):
    """What a reader is told: sentences, cells of tables that are more than links, and remarks of commands; no code."""
    told = []
    for number, part in enumerate(re.split(r"^```\w*\n", text, flags=re.MULTILINE)):
        if number % 2:
            told += re.findall(r"^vkconv .*?(#.*)$", part, re.MULTILINE)
            continue
        for block in part.strip("\n").split("\n\n"):
            lines = block.splitlines()
            if block.startswith("    "):
                told += [" ".join(line.split()) for line in lines]
            elif block.startswith("|"):
                cells = (cell.strip() for line in lines for cell in line.split("|"))
                told += [cell for cell in cells if LINK.sub("", cell).strip(",- ")]
            elif block and not block.startswith("#"):
                told += re.split(r"(?<=\.) (?=[A-Z[]|vkconv )", " ".join(lines))
    return [LINK.sub(r"\1", sentence) for sentence in told]


def test_each_sentence_names_tests_that_are_there():
    assert sentences(README) == list(SHOWN)
    assert missing({test for tests in SHOWN.values() for test in tests}) == []


def test_a_sentence_that_no_test_shows_is_seen():
    assert sentences(README + "\nIt is fast. It is small.\n")[-3:] == [
        "LICENSE: Apache-2.0",
        "It is fast.",
        "It is small.",
    ]
    assert missing(["tests/pure/none.py", f"{HERE}::test_none", f"{HERE}::missing", HERE]) == [
        "tests/pure/none.py",
        f"{HERE}::test_none",
        f"{HERE}::missing",
    ]


def test_devices_that_it_was_tried_on_have_a_result():
    """A GPU is named where what must pass before a release passed, and no phone is."""
    names = set()
    for path in (ROOT / "bench" / "results" / "must_pass").glob("*.json"):
        result = json.loads(path.read_text())
        assert result["right"] > 50 and not result["wrong"]
        names.add(result["device"].split()[1])
    (tried,) = re.findall(r"It was tried on NVIDIA's ([\w ]+) and on CPU drivers", README)
    assert set(tried.split(" and ")) == names
    assert "**It was tried on no phone and no board.**" in (ROOT / "docs" / "testing_devices.md").read_text()


def test_a_convolution_has_many_routes():
    assert len(OPS["conv2d"].routes) >= 20


def test_what_make_does():
    # What a make that runs the tests hands down is not for this one.
    own = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}

    def told(target):
        words = ["make", "-n", "--no-print-directory", target]
        return subprocess.run(words, cwd=ROOT, env=own, capture_output=True, text=True, check=True).stdout

    assert told("run").split("\n")[:2] == ["tools/setup.sh", ".venv/bin/python examples/read_text.py"]
    tests = told("test")
    assert tests.startswith("tools/setup.sh\n")
    for part in ("ruff check", "mypy", "tests/pure", "tests/suites", "tests/gpu", "tests/compilers", "tests/boards"):
        assert part in tests


def test_a_page_has_what_it_is_named_for():
    install = (ROOT / "docs" / "install.md").read_text()
    assert "pip install build/wheels/vkconv-" in install and "pip install '.[onnx,shaders]'" in install
    tour = (ROOT / "docs" / "tour.md").read_text()
    commands = {words[0] for words in all_commands()}
    assert {name for name in commands if f"vkconv {name}" not in tour} == set()
    for name in ("load", "run", "explain", "profile", "check", "array", "submit", "functional"):
        assert re.search(rf"\b{name}\b", tour)


def test_the_site_has_all_that_the_readme_points_to():
    pages = {path.removeprefix("docs/") for path in re.findall(r"\]\((docs/[\w/]+\.md)", README)}
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert len(pages) >= 8 and {page for page in pages if page not in navigation} == set()
