"""What names of models, devices and results become on a terminal, in Markdown and in HTML: each command, each form."""

import ast
import io
import re

import pytest
from cli_kit import ROOT
from hostile_names import DEVICE, EVIL, PURE, all_commands, hostile_output
from rich.console import Console

from vkconv.core import printable
from vkconv.pages import breakable, render
from vkconv.table import Column, Table, markdown

# Modules that print by themselves: what they print is no name, or escaped there.
_PRINTERS = {"vkconv/cli/output.py", "vkconv/cli/__init__.py", "vkconv/cli/probe.py", "vkconv/graph/onnx/worker.py"}


def test_every_command_is_tried():
    assert all_commands() == set(PURE) | set(DEVICE)


@pytest.mark.long
@pytest.mark.parametrize("command", PURE, ids=" ".join)
def test_a_command_shows_no_name_raw(command, tmp_path, monkeypatch):
    monkeypatch.setenv("VKCONV_MEASURED", "off")
    assert not hostile_output(PURE[command], tmp_path)


def test_a_table_shows_no_name_raw():
    table = Table(EVIL, [Column(EVIL)], [[EVIL]])
    terminal = io.StringIO()
    Console(file=terminal, force_terminal=True, width=400).print(table.rich())
    for text in (str(table), table.to_markdown(), table._repr_html_(), terminal.getvalue()):
        for raw in ("\x1b]", "\x07", "\u202e", "\x9b", "\r"):
            assert raw not in text
    for text in (table.to_markdown(), table._repr_html_()):
        assert "<script" not in text
    assert len(table.to_markdown().splitlines()) == 5  # title, blank, heading, rule, row
    assert table.to_csv().count(EVIL.replace("\r\n", "\r\n")) == 2  # data, at full precision


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("conv_1/relu:0 Größe 中", "conv_1/relu:0 Größe 中"),
        ("a\x1b[2Jb\n", r"a\x1b[2Jb\n"),
        ("\u202e\x9b\ud800\U000e0001", r"\u202e\x9b\ud800\U000e0001"),
    ],
)
def test_what_is_not_to_be_seen_is_written_out(text, shown):
    assert printable(text) == shown
    assert printable("a\nb\t", keep="\n") == "a\nb\\t"
    assert printable("\u00e9\\'\x1b") == "\u00e9\\'\\x1b"  # what can be seen stays as it is, beside what cannot


def test_markdown_and_html_show_the_text():
    assert markdown("a|b<c>&![d](e)\\|") == r"a\|b&lt;c&gt;&amp;![d\](e)\\\|"
    assert markdown("[a][b], [c]: d, time [us]*") == r"[a\][b], [c\]: d, time [us]*"
    shown = "&lt;a href=&#39;b&#39;&gt;\\x1b\n"
    assert render("told.html.j2", lines=["<a href='b'>\x1b\n"], tables=[]).strip() == f"<p>{shown}</p>"
    assert breakable("<a href='b'>\x1b\n") == shown and breakable("<a>,b") == "&lt;a&gt;,<wbr>b"


@pytest.mark.long
def test_nothing_else_prints_or_escapes():
    """So that a new command cannot leave it out: one module prints, templates and `markdown` escape."""
    printers, escapers, writers = set(), set(), set()
    for path in (ROOT / "vkconv").rglob("*.py"):
        place = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in ("print", "typer.echo", "typer.secho", "sys.stdout.write", "sys.stderr.write"):
                    printers.add(place)
                if called in ("html.escape", "escape"):
                    escapers.add(place)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search("</[a-z]", node.value):
                writers.add(place)
    assert not writers, "HTML is written by the templates of vkconv/pages alone"
    assert printers == _PRINTERS
    assert escapers == {"vkconv/table.py", "vkconv/pages/__init__.py"}
