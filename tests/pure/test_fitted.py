"""Tables on narrow terminals: nothing is lost, no line is too long, words and numbers stay whole."""

import pytest
from cli_kit import ROOT, on_terminal
from hostile_names import all_commands
from hypothesis import given
from hypothesis import strategies as st

from vkconv.cli import output
from vkconv.fitted import fitted, wrapped
from vkconv.table import Column, Table

ROUTES = Table(
    "matmul:a=1x2x3,b=3x4 on a device",
    (Column("route"), Column("time", "us"), Column("parameters"), Column("why")),
    (
        (
            "shared",
            12.5,
            "tile=" + "|".join(f"{n}x{n}x16" for n in range(8, 40, 4)),
            "tiles " + "in shared memory " * 9,
        ),
        ("register", 1234.0, "rows=8", ""),
    ),
)


def words(lines):
    return "".join("".join(lines).split())


def test_a_table_that_fits_stays_as_it_is():
    assert ROUTES.fit(1000) == str(ROUTES)


def test_towers_stand_below_their_rows():
    assert ROUTES.fit(60).splitlines() == [
        "matmul:a=1x2x3,b=3x4 on a device",
        "route     time [us]  parameters",
        "--------  ---------  ---------------------------------------",
        "shared        12.50  tile=8x8x16|12x12x16|16x16x16|20x20x16|",
        "                     24x24x16|28x28x16|32x32x16|36x36x16",
        "    why: tiles in shared memory in shared memory in shared",
        "      memory in shared memory in shared memory in shared",
        "      memory in shared memory in shared memory in shared",
        "      memory",
        "register       1234  rows=8",
    ]


def test_short_texts_are_wrapped_in_their_column():
    lines = fitted(("op", "what it does"), [("add", "the sum of both"), ("relu", "the larger")], ("left", "left"), 16)
    assert lines == [
        "op    what it",
        "      does",
        "----  ----------",
        "add   the sum of",
        "      both",
        "relu  the larger",
    ]


def test_a_first_column_of_half_the_line_stands_above():
    call = "conv2d:x=1x64x56x56,w=64x64x3x3,p=1"
    lines = fitted(
        ("call", "route", "us"), [(call, "direct", "9"), (call, "winograd", "7")], ("left", "left", "right"), 40
    )
    assert lines == ["call", "  route     us", "  --------  --", call, "  direct     9", "  winograd   7"]


def test_long_words_break_behind_separators():
    assert wrapped("tile=64x64|32x32|16x16 end", 12) == ["tile=64x64|", "32x32|16x16", "end"]
    assert wrapped("a" * 10, 4) == ["aaaa", "aaaa", "aa"]
    assert wrapped("", 4) == [""]


cells = st.text(st.sampled_from("ab|,/ 12"), max_size=30).map(lambda text: " ".join(text.split()))


@given(st.lists(st.tuples(cells, cells, cells), max_size=5), st.integers(12, 60))
def test_no_text_is_lost(rows, width):
    lines = fitted(("one", "two words", "three"), rows, ("left", "left", "left"), width)
    for row in rows:
        for cell in row:
            for letter in "ab12|,/":
                assert words(lines).count(letter) >= cell.count(letter)
    assert max(map(len, lines)) <= max(width, 40)


KEPT = ROOT / "tests" / "pure" / "data" / "versions"
OLD = KEPT / "0.1.0"
X = ["--shape", "x=1x3x8x8"]
COMMANDS = {
    "ops": ["ops"],
    "passes": ["passes"],
    "policies": ["policies"],
    "policy": ["policies", "conv2d.winograd"],
    "files": ["devices", "files"],
    "evidence": ["devices", "files", "--evidence"],
    "call": ["explain", "conv2d:x=1x64x56x56,w=64x64x3x3,p=1", "-d", "mali-g57"],
    "why not": ["explain", "conv2d:x=1x64x56x56,w=64x64x3x3,p=1", "-d", "mali-g57", "--why-not", "winograd"],
    "compare": ["explain", "matmul:a=64x64,b=64x64", "--compare", "mali-g57,h200"],
    "GPUs": ["compilers"],
    "device": ["devices", "-d", "mali-g715", "--evidence"],
    "model": ["show", str(OLD / "graph.vkc")],
    "times": ["compare", str(OLD / "bench.json"), str(OLD / "bench.json")],
    "suites": ["bench", "--suite", "list"],
    "op": ["ops", "conv2d"],
    "limits": ["devices", "-d", "mali-g57"],
    "memory": ["show", str(OLD / "graph.vkc"), "--memory", "-d", "h200", *X],
    "plan": ["explain", str(OLD / "graph.vkc"), "-d", "mali-g57", *X],
    "checks": ["compare", str(OLD / "check.json"), str(KEPT / "1.0.0" / "conformance.json")],
    "report": ["tune", "--report", str(OLD / "measured.json")],
}


# Where the tables of the other commands are looked at, and what prints lines alone.
ELSEWHERE = {
    ("doctor",): "gpu/test_cli_gpu.py",
    ("compile",): "pure/compilers/test_cli_compile.py",
    ("estimate",): "pure/compilers/test_cli_compile.py",
    **{(name,): "gpu/test_terminal.py" for name in ("bench", "check", "run", "tune")},
    **{("phone", name): "gpu/test_phone.py" for name in ("bench", "check", "info", "list", "run")},
}
WITHOUT_TABLES = {("convert",), ("extract",), ("pack",), ("devices", "import"), ("phone", "pull")}
WITHOUT_TABLES |= {("compilers", "install")}


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_commands_keep_to_a_terminal_of_100_columns(command, monkeypatch):
    code, lines, broken = on_terminal(monkeypatch, *command)
    assert (code, broken) == (0, []) and len(lines) > 5


def test_every_command_is_looked_at():
    here = {path for path in all_commands() for words in COMMANDS.values() if tuple(words[: len(path)]) == path}
    assert here | set(ELSEWHERE) | WITHOUT_TABLES == all_commands()
    for command, place in ELSEWHERE.items():
        test = (ROOT / "tests" / place).read_text()
        assert "on_terminal(" in test and f'"{command[-1]}"' in test, command


def test_wide_is_for_any_place_and_no_command_sees_it(monkeypatch):
    for command in (["--wide", "passes"], ["passes", "--wide"]):
        code, lines, _ = on_terminal(monkeypatch, *command, columns=60)
        assert code == 0 and max(map(len, lines)) > 60
    assert output.begin(["show", "--", "--wide"]) == ["show", "--", "--wide"]
