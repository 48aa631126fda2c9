"""The documentation site: built without a warning, with every op, command and public name."""

import os
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest
from required import required

import vkconv

required("mkdocs", "mkdocstrings")
import docs_site  # noqa: E402

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_site_is_built_without_a_warning(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "-d", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.strip()) == (0, "", "")
    pages = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.html")}
    assert {"index.html", "glossary.html", "changelog.html", "reference/ops/conv2d.html"} <= pages.keys()
    requested = re.compile(r"""src=["']?(?:https?:)?//|<link[^>]*href=["'](?:https?:)?//""")
    assert not [name for name, page in pages.items() if requested.search(page)]
    python = pages["reference/python.html"]
    assert "One inference" in python and "submit" in python


@pytest.mark.long
def test_every_op_and_command_has_its_place():
    pages = dict(docs_site.made_pages())
    assert {f"reference/ops/{name}.md" for name in docs_site.OPS} <= pages.keys()
    assert "### winograd" in pages["reference/ops/conv2d.md"]
    assert "its last bits may change" in pages["reference/ops/conv_reduce.md"]
    commands = pages["reference/commands.md"]
    for name in ("vkconv bench", "vkconv devices import", "vkconv phone check", "vkconv compilers install"):
        assert f"\n## {name}\n" in commands
    assert "| --route |" in commands


def test_every_notebook_is_a_page():
    assert len(docs_site.NOTEBOOKS) == 3
    for path in docs_site.NOTEBOOKS:
        assert f"({path.stem}.md)" in docs_site.notebooks_page()
        page = docs_site.notebook_page(path)
        assert page.startswith("# ") and page.count("```python\n") >= 3 and f"({path.name})" in page


def test_every_public_name_is_on_the_python_page():
    pages = [name for names in docs_site.PYTHON.values() for name in names]
    named = {part for name in pages for part in name.split(".")}
    internal = {"__version__", "Graph", "Node", "TensorSpec", "load_model"}
    assert set(vkconv.__all__) - internal <= named
    public = {f"vkconv.bench.{name}" for name in vkconv.bench.__all__} - {"vkconv.bench.Comparison"}
    assert {name.rpartition(".")[2] for name in public} <= {*named, "compare_results"}
    assert {docs_site.called(name) for name in pages} >= {"vkconv.check.run", "vkconv.bench.run", "vkconv.functional"}


@pytest.mark.parametrize(
    ("text", "origin", "uri", "wanted"),
    [
        ("[a](docs/format.md#x)", "README.md", "index.md", "[a](format.md#x)"),
        ("[a](../SECURITY.md)", "docs/reliability.md", "reliability.md", "[a](security.md)"),
        ("[a](../../tools/x.sh)", "docs/tutorials/a.md", "tutorials/a.md", "[a](../files/tools/x.sh)"),
        ("[a](https://x.y)", "README.md", "index.md", "[a](https://x.y)"),
        ("    [a](docs/b.md)", "README.md", "index.md", "    [a](docs/b.md)"),
    ],
)
def test_links_lead_to_the_site(text, origin, uri, wanted):
    assert docs_site.relinked(text, PurePosixPath(origin), PurePosixPath(uri)) == wanted
