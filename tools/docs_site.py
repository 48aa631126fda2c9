"""The pages of the documentation site that are made from the code, as a hook of mkdocs: every op, every command, the
Python interface. It also brings the documents and files that lie outside docs/ and are linked to."""

import functools
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from vkconv.cli import app
from vkconv.cli.ops import default_str, op_data, operand_str, type_str, types_of, without_routes
from vkconv.ops import OPS
from vkconv.ops.core.base import Op
from vkconv.table import Column, Table, markdown

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
HOME = "index.md"  # docs/ has one of its own, which stands for README.md too
# Documents of the repository's root, by the page that each becomes.
DOCUMENTS = {
    "README.md": HOME,
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
# What the Python page has, by section, by where it is defined.
PYTHON = {
    "Models": [
        "vkconv.loading.load",
        "vkconv.settings.Settings",
        "vkconv.session.Session",
        "vkconv.plan.planner.Options",
    ],
    "Checking": ["vkconv.check.api.run", "vkconv.check.found.CheckResult"],
    "Measuring": [
        "vkconv.bench.api.run",
        "vkconv.bench.sampling.BenchOptions",
        "vkconv.bench.rows.Result",
        "vkconv.bench.compare.compare",
        "vkconv.bench.files.read_result",
    ],
    "Arrays on a device": ["vkconv.backend.arrays.array", "vkconv.backend.arrays.DeviceArray"],
    "Functions": ["vkconv.functional"],
    "Tests": ["vkconv.testing"],
    "Tables": ["vkconv.table.Table"],
    "Errors": ["vkconv.core.VkconvError"],
}
# How it is called where that says too little.
_CALLED = {
    "vkconv.check.api.run": "vkconv.check.run",
    "vkconv.bench.api.run": "vkconv.bench.run",
    "vkconv.bench.compare.compare": "vkconv.bench.compare_results",
}
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_FENCE = re.compile(r"^(?:```|    |\t)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    for uri, text in made_pages():
        files.append(File.generated(config, uri, content=text))
    for name, uri in DOCUMENTS.items():
        if uri != HOME:
            files.append(File.generated(config, uri, content=(ROOT / name).read_text()))
    for path in linked_files():
        uri = _on_site(path.relative_to(ROOT).as_posix())
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links that leave docs/ lead to the pages and files of the site."""
    uri = page.file.src_uri
    origin = next((name for name, made in DOCUMENTS.items() if made == uri != HOME), f"docs/{uri}")
    return relinked(text, PurePosixPath(origin), PurePosixPath(page.file.src_uri))


def made_pages() -> Iterator[tuple[str, str]]:
    """Address and Markdown of every page that is made from the code."""
    return ((address, make()) for address, make in makers().items())


def makers() -> dict[str, Callable[[], str]]:
    """What makes the Markdown of each page that is made from the code, by its address."""
    return {
        "reference/ops/index.md": ops_page,
        **{f"reference/ops/{op.name}.md": functools.partial(op_page, op) for op in OPS.values()},
        "reference/commands.md": commands_page,
        "reference/python.md": python_page,
        "decisions/index.md": decisions_page,
        "notebooks/index.md": notebooks_page,
        **{f"notebooks/{path.stem}.md": functools.partial(notebook_page, path) for path in NOTEBOOKS},
    }


# ---- ops


def ops_page() -> str:
    """All ops in a table."""
    rows = [
        f"| [{op.name}]({op.name}.md) | {_code(operand_str(o) for o in op.operands)} "
        f"| {_code(r.name for r in op.routes) or without_routes(op)} | {' '.join(types_of(op).all)} |"
        for op in OPS.values()
    ]
    head = "| op | operands | routes | element types |\n| --- | --- | --- | --- |"
    return (
        "# Ops\n\nEvery op, from the registry: `vkconv ops --json` has the same as data. Operands: `?` optional, "
        f"`...` any number, `#` known when planned.\n\n{head}\n" + "\n".join(rows) + "\n"
    )


def op_page(op: Op) -> str:
    """An op in full."""
    data, types = op_data(op), types_of(op)
    columns = [Column(name) for name in ("operand", "element types")]
    operands = [(operand_str(o), " ".join(types.operands.get(o.name, [])) or "a list of integers") for o in op.operands]
    attrs = [(a.name, a.key, type_str(a.type), default_str(a.default)) for a in op.attrs]
    parts = [f"# {op.name}", markdown(op.doc), f"Outputs: {_code(op.outputs)}."]
    if operands:
        parts += ["## Operands", Table("", columns, operands).to_markdown()]
    if attrs:
        names = [Column(name) for name in ("attribute", "key in a call", "type", "default")]
        parts += ["## Attributes", Table("", names, attrs).to_markdown()]
    parts += ["## Routes"]
    if not data["routes"]:
        parts += [f"None: {data['without_routes']}."]
    for route in data["routes"]:
        facts = [("takes", " ".join(route["dtypes"])), ("must", route["must"]), ("prefers", route["prefer"])]
        facts += [("only when asked for", route["opt_in"]), ("why", route["why"]), ("source", route["source"])]
        if not route["deterministic"]:
            facts += [("note", "its last bits may change from run to run")]
        parts += [f"### {route['route']}", "\n".join(_fact(*fact) for fact in facts if fact[1])]
    if data["published"]:
        parts += ["## Published rules", f"`--policy` knows those of {', '.join(data['published'])}."]
    parts += ["## Reference", f"Float64, by the definition: `{data['reference']}`."]
    if op.cases:
        cases = "\n".join(f"    {case}" for case in op.cases[:5])
        parts += ["## Calls", f"{len(op.cases)} are checked on every route; the first:", cases]
    return "\n\n".join(filter(None, parts)) + "\n"


def _fact(name: str, value: str | list[str]) -> str:
    return f"- {name}: {markdown(value if isinstance(value, str) else '; '.join(value))}"


def _code(names: Any) -> str:
    return " ".join(f"`{name}`" for name in names)


# ---- commands


def commands_page() -> str:
    """Every command with its arguments and options, from what --help is made of."""
    parts = ["# Commands", "As `vkconv COMMAND --help` has it. Every command takes `--wide`."]
    for words, command in commands():
        usage = " ".join([*words, *(p.metavar or p.name.upper() for p in command.params if _is_argument(p))])
        text = " ".join(line for line in (command.help or "").split("\n\n") if line)
        parts += [f"## {' '.join(words)}", f"    {usage} [OPTIONS]", markdown(" ".join(text.split()))]
        rows = [
            (_named(p), p.metavar or "", " ".join((p.help or "").split())) for p in command.params if p.name != "help"
        ]
        parts += (
            [Table("", [Column(c) for c in ("option", "value", "what it does")], rows).to_markdown()] if rows else []
        )
    return "\n\n".join(parts) + "\n"


def commands() -> Iterator[tuple[list[str], Any]]:
    """The words and the definition of each command."""

    def below(words: list[str], command: Any) -> Iterator[tuple[list[str], Any]]:
        subcommands = getattr(command, "commands", {})
        if not subcommands or command.invoke_without_command:
            yield words, command
        for name, sub in subcommands.items():
            yield from below([*words, name], sub)

    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        yield from below(["vkconv", name], command)


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _named(parameter: Any) -> str:
    if _is_argument(parameter):
        return str(parameter.metavar or parameter.name.upper())
    return ", ".join([*parameter.opts, *parameter.secondary_opts])


# ---- the rest


def python_page() -> str:
    """The Python interface, from docstrings."""
    parts = ["# Python", "`import vkconv` gives what is listed here; annotations are checked by mypy in strict mode."]
    for section, names in PYTHON.items():
        parts += [f"## {section}", *map(_documented, names)]
    return "\n\n".join(parts) + "\n"


def called(name: str) -> str:
    """What users call a name, that is defined there."""
    return _CALLED.get(name, name)


def _documented(name: str) -> str:
    if name not in _CALLED:
        return f"::: {name}"
    return f"::: {name}\n    options:\n      heading: {called(name)}\n      toc_label: {called(name)}"


def decisions_page() -> str:
    """The decisions by their titles."""
    found = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    lines = [f"- [{path.read_text().partition(chr(10))[0].lstrip('# ')}]({path.name})" for path in found]
    return "# Decisions\n\nWhy vkconv is built as it is, each in half a page.\n\n" + "\n".join(lines) + "\n"


def notebooks_page() -> str:
    """The notebooks by their titles."""
    lines = [f"- [{_cells(path)[0][1].partition(chr(10))[0].lstrip('# ')}]({path.stem}.md)" for path in NOTEBOOKS]
    return "# Notebooks\n\nCI runs them from the first cell to the last.\n\n" + "\n".join(lines) + "\n"


def notebook_page(path: Path) -> str:
    """The cells of a notebook, and a link to it."""
    title, *rest = [text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in _cells(path)]
    return "\n\n".join([title, f"[{path.name}]({path.name}) is this page to run.", *rest]) + "\n"


def _cells(path: Path) -> list[tuple[str, str]]:
    """Kind and text of each cell of a notebook."""
    return [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(path.read_text())["cells"]]


def relinked(text: str, origin: PurePosixPath, uri: PurePosixPath) -> str:
    """A document's text with its local links as they are on the site; ``origin`` is its path in the repository, ``uri``
    its page. Links in code stay."""

    def link(match: re.Match[str]) -> str:
        target, mark, anchor = match[2].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        path = os.path.normpath(origin.parent / target)
        return f"{match[1]}{os.path.relpath(_on_site(path), uri.parent)}{mark}{anchor}{match[3]}"

    lines, inside = [], False
    for line in text.split("\n"):
        inside ^= line.startswith("```")
        lines.append(line if inside or _FENCE.match(line) else _LINK.sub(link, line))
    return "\n".join(lines)


def _on_site(path: str) -> str:
    """Where a file of the repository is on the site, from its root."""
    if path in DOCUMENTS:
        return DOCUMENTS[path]
    if path == "docs/decisions":
        return "decisions/index.md"
    # A README is the index of its folder to mkdocs, which a page of files has no use for.
    return path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path.replace('README', 'about')}"


@functools.cache
def linked_files() -> tuple[Path, ...]:
    """Files outside docs/ that a document links to, and that are no document themselves."""
    found: set[Path] = set()
    for document in (*(ROOT / name for name in DOCUMENTS), *(ROOT / "docs").rglob("*.md")):
        for _, target, _ in _LINK.findall(document.read_text()):
            path = (document.parent / target.partition("#")[0]).resolve()
            inside = path.is_relative_to(ROOT) and not path.is_relative_to(ROOT / "docs")
            if inside and path.is_file() and path.name not in DOCUMENTS:
                found.add(path)
    return tuple(sorted(found))
