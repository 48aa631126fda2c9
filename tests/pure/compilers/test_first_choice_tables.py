"""Tables of first choices: what is in them, and what is worse than in an earlier one."""

import subprocess
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from vkconv.compilers import first_choices
from vkconv.compilers.first_choices import Choice, Choices, choices_of, compile_words, read_choices, summary, worse
from vkconv.compilers.gpus import data, set_of
from vkconv.compilers.rows import Code, GpuHeader, Result, Row, Verdict
from vkconv.core import DeviceError, UsageError

KEPT = Path(__file__).parents[3] / "bench" / "results" / "compiled"
HEADER = GpuHeader(name="g", title="G", driver="D", version="26.2.6-1", planned_with="file", occupancy="threads")
CALL = "matmul:a=2x3,b=3x4"


def row(verdict: Verdict = "ok", *, gpu: str = "g", call: str = CALL, chosen: bool = True, **code: float) -> Row:
    return Row(
        gpu=gpu, call=call, route="shared", params={"tile": "8x8"}, chosen=chosen, verdict=verdict, code=Code(**code)
    )


def table(choice: Choice | None) -> Choices:
    return Choices("g", "D", "26.2.6-1", "file", {CALL: choice} if choice else {})


def test_a_calls_pipelines_are_one_choice_with_the_worst_of_them() -> None:
    rows = [
        row(spills=0, fills=0, registers=12, occupancy=2),
        row("spills", spills=3, fills=4, registers=64, occupancy=1),
        row(registers=99, chosen=False),
        row("aborts", gpu="another"),
        row("too long", call="relu:x=3"),
    ]
    made = choices_of(HEADER, rows).choices
    assert made[CALL] == Choice("shared tile=8x8", "spills", 3, 4, 64, 1)
    assert made["relu:x=3"] == Choice("shared tile=8x8", "too long")
    assert len(made) == 2


def test_a_table_is_read_as_it_was_written() -> None:
    rows = [row("spills", spills=3, fills=0.5), row("not planned", call="conv2d:x=1x2,w=3x4"), row(call="a:x=1,y=2")]
    made = choices_of(HEADER, rows)
    text = first_choices.write_choices(made)
    assert read_choices(text) == made
    assert summary(made) == "g: 3 calls, 1 ok, 1 not planned, 1 spills; D, Mesa 26.2.6-1"
    with pytest.raises(UsageError, match=r"vkconv reads vkconv\.first_choices/1"):
        read_choices(text.replace("first_choices/1", "first_choices/9"))


OK = Choice("a", "ok", 0, 0, 64, 1)


@pytest.mark.parametrize(
    ("before", "now", "is_worse"),
    [
        (OK, OK, False),
        (OK, Choice("b", "spills", 1, 0), True),
        (OK, Choice("b", "too long"), True),
        (Choice("a", "spills", 3, 4), Choice("b", "spills", 4, 3), False),
        (Choice("a", "spills", 3, 4), Choice("b", "spills", 4, 4), True),
        (Choice("a", "spills", 3, 4), Choice("b", "aborts"), True),
        (Choice("a", "aborts"), Choice("b", "spills", 99, 99), False),
        (Choice("", "not planned"), OK, False),
        (OK, Choice("", "not planned"), True),
        (None, OK, False),
        (None, Choice("", "not planned"), False),
        (None, Choice("b", "spills", 1, 0), True),
    ],
)
def test_what_is_worse(before: Choice | None, now: Choice, is_worse: bool) -> None:
    lines = worse(table(before), table(now))
    assert bool(lines) is is_worse
    if lines:
        assert CALL in lines[0] and f"now {now}" in lines[0] and str(before or "not there") in lines[0]


def test_a_call_that_is_no_more_there_is_not_worse() -> None:
    assert worse(table(OK), table(None)) == []


@pytest.mark.skipif(find_spec("rapidocr_onnxruntime") is None, reason="rapidocr-onnxruntime is not installed")
def test_workloads_are_in_both_types() -> None:
    named = dict(first_choices.workloads())
    assert list(named) == [
        "golden",
        "golden f16",
        "layers f32",
        "layers f16",
        "rec f32",
        "rec f16",
        "det f32",
        "det f16",
    ]
    assert all(text.endswith(",dtype=f16") for text in named["golden f16"]) and len(named["golden f16"]) > 30
    in_type = {name: words[words.index("--dtype") + 1] for name, words in named.items() if "golden" not in name}
    assert all(name.endswith(dtype) for name, dtype in in_type.items())


def test_a_result_is_read_and_none_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    result = Result(calls="c", options={}, gpus=[HEADER], rows=[row()])
    commands = []

    def run(said: bytes) -> None:
        def done(command: list[str], **options: object) -> "subprocess.CompletedProcess[bytes]":
            commands.append(command)
            return subprocess.CompletedProcess(command, 1, said)

        monkeypatch.setattr(first_choices.subprocess, "run", done)

    run(msgspec.json.encode(result))
    assert compile_words(("--suite", "golden"), ["g", "h"], 5) == result
    assert commands[0][4:] == ["compile", "--suite", "golden", "--with", "g,h", "--json", "--max-seconds", "5"]
    run(b"")
    with pytest.raises(DeviceError, match="vkconv compile --suite golden ended with exit code 1"):
        compile_words(("--suite", "golden"), ["g"], 5)


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.csv")), ids=lambda path: path.stem)
def test_the_kept_tables_are_whole(path: Path) -> None:
    kept = read_choices(path.read_text())
    assert kept.gpu == path.stem and kept.gpu in {gpu.name for gpu in data().gpus}
    assert len(kept.choices) > 200 and first_choices.write_choices(kept) == path.read_text()


def test_there_is_a_table_of_every_gpu_whose_driver_is_emulated() -> None:
    assert {path.stem for path in KEPT.glob("*.csv")} == {gpu.name for gpu in data().gpus if set_of(gpu) == "arm64"}
