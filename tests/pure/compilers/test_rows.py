"""Rows, verdicts and tables of compiled pipelines, from statistics that the GPUs' own compilers gave."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from vkconv.compilers.gpus import driver_of, find_gpu
from vkconv.compilers.pipelines import Asked, Made, Pipeline, Step
from vkconv.compilers.rows import (
    Code,
    GpuHeader,
    Result,
    Row,
    code_of,
    failures_table,
    header_lines,
    make_rows,
    rows_table,
    screen_tables,
    summary,
    verdict_of,
)
from vkconv.compilers.runner import Compiled, Executable
from vkconv.kernel import Shader
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call

RECORDED = {
    row["gpu"]: msgspec.convert(row["compiled"], type=Compiled)
    for row in json.loads((Path(__file__).parents[1] / "data" / "compiled.json").read_text())["rows"]
}
TEXT = "matmul:a=3x5,b=5x7,dtype=f32"
ASKED = Asked(parse_call(TEXT, OPS), TEXT)


class FakePipeline(Pipeline):
    """One without SPIR-V."""

    digest = "0123456789abcdef"  # type: ignore[assignment]


def made(**changes: Any) -> Made:
    pipeline = FakePipeline(Shader("some"), (64, 1, 1, 7), 3, 8)
    return Made(
        **{"asked": ASKED, "route": "shared", "params": {"tile": "8x8"}, "chosen": True, **changes},
        steps=(Step("run", pipeline),),
    )


def rows_of(gpu: str, compiled: Compiled, **changes: Any) -> list[Row]:
    one = made(**changes)
    return make_rows(find_gpu(gpu), one, {step.pipeline: compiled for step in one.steps})


@pytest.mark.parametrize(
    ("gpu", "columns"),
    [
        ("adreno-740", {"registers": 76, "occupancy": 10, "alu": 1196, "memory": 58, "control": 713, "stalls": 317}),
        ("navi31", {"registers": 84, "scalar_registers": 108, "occupancy": 16, "cycles": 1408, "shared_bytes": 4096}),
        ("ga102", {"registers": 64, "occupancy": 32, "cycles": 33455, "register_spills": 0, "alu": None}),
        ("apple-m1", {"registers": None, "half_registers": 127, "occupancy": 832, "alu_cycles": 857}),
        ("mali-g31", {"registers": 64, "alu_cycles": 55, "fma_cycles": None, "spills": 10, "fills": 45}),
        ("mali-g610", {"registers": 64, "alu_cycles": 25.203125, "fma_cycles": 4.59375, "memory_cycles": 134}),
        ("raspberry-pi-5", {"occupancy": 2, "spills": 93, "fills": 120, "scratch_bytes": 6976, "registers": None}),
        ("powervr-bxs-4-64", {"registers": 92, "spills": 0, "alu": 2145, "occupancy": None}),
    ],
)
def test_columns_of_each_driver(gpu: str, columns: dict[str, float | None]) -> None:
    code = code_of(RECORDED[gpu].executables, driver_of(find_gpu(gpu)))
    assert {name: getattr(code, name) for name in columns} == columns
    assert code.instructions and code.instructions > 1000


def test_a_pipeline_of_two_executables_has_sums_the_most_registers_and_the_least_occupancy() -> None:
    one = {"Number of GPRs": 40, "Max warps/SM": 40, "Instruction count": 100, "Spills to memory": 1}
    two = {"Number of GPRs": 64, "Max warps/SM": 32, "Instruction count": 11, "Spills to memory": 2}
    executables = [Executable("a", 32, {**one}), Executable("b", 32, {**two})]
    code = code_of(executables, driver_of(find_gpu("ga102")))
    assert (code.registers, code.occupancy, code.instructions, code.spills) == (64, 32, 111, 3)
    (row,) = rows_of("ga102", Compiled(outcome="compiled", executables=tuple(executables)))
    assert row.statistics["a: Number of GPRs"] == 40 and row.statistics["b: Number of GPRs"] == 64


def test_a_statistic_that_is_not_there_leaves_its_column_empty() -> None:
    executables = [Executable("a", 32, {"Number of GPRs": 40}), Executable("b", 32, {})]
    assert code_of(executables, driver_of(find_gpu("ga102"))) == Code()


@pytest.mark.parametrize(
    ("compiled", "code", "verdict", "why"),
    [
        (Compiled(outcome="compiled"), Code(spills=0, fills=0), "ok", ""),
        (Compiled(outcome="compiled"), Code(register_spills=4), "ok", ""),
        (Compiled(outcome="compiled"), Code(fills=1), "spills", ""),
        (
            Compiled(outcome="refused", call="vkCreateComputePipelines", result=-13),
            Code(),
            "refused",
            "vkCreateComputePipelines gave VK_ERROR_UNKNOWN",
        ),
        (Compiled(outcome="refused", call="vkCreateDevice", result=-77), Code(), "refused", "gave VkResult -77"),
        (Compiled(outcome="signal", signal=6, said="a\n b\n"), Code(), "aborts", "ended by SIGABRT: a b"),
        (Compiled(outcome="signal", signal=99), Code(), "aborts", "ended by signal 99"),
        (Compiled(outcome="exit", status=3), Code(), "aborts", "exit code 3"),
        (Compiled(outcome="timeout", seconds=5), Code(), "too long", "not done after 5 s"),
    ],
)
def test_verdicts(compiled: Compiled, code: Code, verdict: str, why: str) -> None:
    assert verdict_of(compiled, code) == verdict
    assert why in compiled.why and bool(why) == bool(compiled.why)


def test_a_first_choice_that_spills_fails_and_another_does_not() -> None:
    (row,) = rows_of("mali-g610", RECORDED["mali-g610"])
    assert row.failed and row.verdict == "spills" and row.why == "9 spills, 37 fills"
    assert (row.shader, row.local, row.words, row.pipeline) == ("some.f32", (64, 1, 1), (64, 1, 1, 7), "0123456789ab")
    assert row.statistics["Spill cost"] == 500
    (other,) = rows_of("mali-g610", RECORDED["mali-g610"], chosen=False)
    assert not other.failed


def test_a_call_that_cannot_be_planned_is_a_row_that_says_why_and_no_failure() -> None:
    (row,) = make_rows(find_gpu("navi31"), Made(ASKED, "shared", {}, True, (), "it cannot"), {})
    assert (row.verdict, row.why, row.failed) == ("not planned", "it cannot", False)


def result() -> Result:
    header = GpuHeader(
        name="mali-g610",
        title="Mali",
        driver="PanVK",
        version="26",
        planned_with="live",
        occupancy="threads",
        differences=list("abcde"),
    )
    rows = rows_of("mali-g610", RECORDED["mali-g610"])
    rows += rows_of("mali-g610", Compiled(outcome="timeout", seconds=5), chosen=False, route="other", params={})
    return Result(calls="a call", options={"max_seconds": 5.0, "route": None}, gpus=[header], rows=rows)


def test_tables_star_what_the_planner_takes_and_leave_out_empty_columns() -> None:
    rows = result().rows
    table = rows_table(rows)
    assert [row["route"] for row in table.rows] == ["shared tile=8x8*", "other"]
    assert [row["spills"] for row in table.rows] == [9, None]
    names = [column.name for column in table.columns]
    assert "half registers" not in names and "count" not in names and "gpu" not in names
    (screen,) = screen_tables("mali-g610", rows)
    assert screen.title == f"mali-g610: {TEXT}" and "call" not in [column.name for column in screen.columns]
    assert [row["why"] for row in failures_table(rows).rows] == [
        "9 spills, 37 fills",
        "the compiler was not done after 5 s",
    ]


def test_a_route_stands_once_above_its_pipelines_on_a_screen() -> None:
    rows = rows_of("navi31", RECORDED["navi31"]) * 2
    assert [row["route"] for row in screen_tables("navi31", rows)[0].rows] == ["shared tile=8x8*", ""]


def test_the_lines_tell_conditions_and_what_is_not_as_tried() -> None:
    one = result()
    lines = header_lines(one)
    assert lines[0] == "a call; max_seconds 5.0"
    assert "planned with live" in lines[1]
    assert lines[2] == "mali-g610: NOT as tried: a; b; c and 2 more"
    assert summary(one.gpus[0], one.rows).startswith("mali-g610: 1 pipeline of 1 call, 1 too long")
    assert "1 of first choices FAIL" in summary(one.gpus[0], one.rows)


def test_a_result_is_read_back_from_its_json() -> None:
    one = result()
    again = msgspec.json.decode(msgspec.json.encode(one), type=Result)
    assert again == one and again.failed == one.failed and len(again.failed) == 1
