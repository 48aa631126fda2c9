"""What the documents point to is there, and nothing in them waits to be filled in."""

import os
import re
import tomllib
from pathlib import Path

import pytest
from required import required

required("mkdocs")
import docs_site  # noqa: E402

from vkconv import functional  # noqa: E402
from vkconv.compilers.gpus import gpu_names  # noqa: E402
from vkconv.device import load_device, shipped_devices  # noqa: E402
from vkconv.functional.generated import ELSEWHERE, HOST_ONLY  # noqa: E402
from vkconv.graph.aten.rules import RULES as ATEN_RULES  # noqa: E402
from vkconv.plan.passes import PASSES  # noqa: E402

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MADE = set(docs_site.makers())
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([\w.-]+/[\w./-]*)`")
MAKE = re.compile(r"(?:`|^    )make ([a-z-]+)", re.MULTILINE)
PLACEHOLDER = re.compile(r"\b(?:[A-Z]+_LP|LP_[A-Z]+|TODO|TBD|FIXME|XXX)\b")


def local_paths(document, text):
    """Targets of links that are no addresses, and paths in code that begin with a folder of the repository."""
    links = (link.partition("#")[0] for link in LINK.findall(text) if not re.match(r"[a-z]+:", link))
    paths = (document.parent / link for link in links if link)
    yield from (path for path in paths if os.path.relpath(path, ROOT / "docs") not in MADE)
    yield from (ROOT / path for path in CODE.findall(text) if (ROOT / path.partition("/")[0]).is_dir())


def test_the_documents_are_found():
    names = {path.relative_to(ROOT).as_posix() for path in DOCUMENTS}
    assert names >= {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/format.md", "docs/performance.md"}
    assert len(list(local_paths(ROOT / "README.md", (ROOT / "README.md").read_text()))) >= 6


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_what_a_document_points_to_is_there(document):
    dangling = [str(path) for path in local_paths(document, document.read_text()) if not path.exists()]
    assert dangling == []


def test_what_they_tell_to_make_is_a_target():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    told = {target: path.name for path in DOCUMENTS for target in MAKE.findall(path.read_text())}
    assert told.keys() >= {"run", "test", "check", "docs"}
    assert {target: name for target, name in told.items() if target not in targets} == {}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_nothing_is_left_to_fill_in(document):
    assert PLACEHOLDER.findall(document.read_text()) == []


def test_numbers_of_what_is_there_are_those_of_the_code():
    said = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in ("testing_devices", "compilers", "models")}
    shipped = [load_device(name) for name in shipped_devices()]
    behind_shims = sum("Mesa" in device.driver and device.kind != "cpu" for device in shipped)
    devices = " ".join(said["testing_devices"].split())
    assert f"{len(shipped)} ship: " in devices and f"Files of Mesa's drivers ({behind_shims}) are" in devices
    assert f"# {len(gpu_names())} GPUs, " in said["compilers"]
    assert set(re.findall(r"`(\w+)` \(", said["models"].partition("Required are")[2].partition(".\n")[0])) == {
        entry.name for entry in PASSES if entry.required
    }
    torch_rules = (ROOT / "docs" / "decisions" / "0009-torch-by-its-own-operators.md").read_text()
    assert f"{len(ATEN_RULES)} in three tables" in torch_rules
    dumped = re.findall(r"graphs/(\d\d)-(\w+)\.txt", said["models"])
    assert dumped and all(PASSES[int(number) - 1].name == name for number, name in dumped)


def test_the_license_is_the_one_that_the_package_names():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text


@pytest.mark.parametrize("text", [(ROOT / "docs" / "tour.md").read_text(), functional.__doc__], ids=["tour", "help"])
def test_ops_without_a_function_of_their_name_are_told(text):
    sentence = next(s for s in re.split(r"\.\s", text) if "constant_of_shape" in s)
    assert set(re.findall(r"\w+", sentence)) >= {*HOST_ONLY, *ELSEWHERE, *sum(ELSEWHERE.values(), ())}
