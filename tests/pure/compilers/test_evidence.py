"""The tables of what GPUs' compilers made of kernels: written, read, asked, and committed."""

import dataclasses

import pytest
from test_rows import result

from vkconv.compilers.evidence import constants_of, shaders, table_of
from vkconv.compilers.gpus import data, find_gpu
from vkconv.core import UsageError
from vkconv.device import evidence
from vkconv.device.evidence import Compiled, Evidence, evidence_gpus, load_evidence, read_evidence, write_evidence
from vkconv.ops import OPS, all_shaders
from vkconv.program import word_bits

GEMM = next(shader for shader in all_shaders() if shader.key == "matmul_shared.f32")

TABLE = Evidence(
    "adreno-740",
    "Turnip",
    "26.1",
    "waves per core",
    {
        ("a.f16", "64x1x1", ""): Compiled({"registers": 32.0, "spills": 0.0, "fills": 0.0}, ("matmul:x:8x8",)),
        ("a.f32", "64x1x1", "BM=8 ALPHA=0.5"): Compiled({"spills": 2.0}, ("conv2d:y:8x8", "matmul:x:8x8")),
        ("help.f32", "64x1x1", ""): Compiled({}, ("matmul:x",), "aborts"),
    },
)


def test_a_table_is_read_back_as_it_was_written() -> None:
    text = write_evidence(TABLE)
    assert read_evidence(text) == TABLE and write_evidence(read_evidence(text)) == text


def test_a_table_of_another_form_is_refused() -> None:
    with pytest.raises(UsageError, match=r"this evidence is vkconv\.evidence/9"):
        read_evidence(write_evidence(TABLE).replace("vkconv.evidence/1", "vkconv.evidence/9"))


def test_constants_that_are_not_the_defaults_are_named() -> None:
    fields = GEMM.interface.constants
    bools = {"true": 1, "false": 0}
    words = [word_bits(float(f.default) if f.type == "float" else int(bools.get(f.default, f.default))) for f in fields]
    assert constants_of(GEMM, words) == ""
    words[2] += 5
    assert constants_of(GEMM, words) == f"{fields[2].name}={words[2]}"


def test_rows_of_one_kernel_are_one_kernel_of_all_their_uses() -> None:
    one = result()
    rows = [row for row in one.rows if row.verdict == "spills"]
    for row in rows:
        row.shader, row.words = GEMM.key, (64, 1, 1, *(0 for _ in GEMM.interface.constants))
    other, conv = (type(row)(**{f: getattr(row, f) for f in row.__struct_fields__}) for row in (rows[0], rows[0]))
    other.params, conv.call, conv.route = {"tile": "4x4"}, "conv2d:x", "im2col"
    table = table_of(one.gpus[0], [*rows, conv])
    ((_, kernel),) = table.kernels.items()
    assert kernel.uses == ("conv2d:im2col:8x8", "matmul:shared:8x8") and kernel.measures["spills"] == 9
    ((_, kernel),) = table_of(one.gpus[0], [*rows, other, conv]).kernels.items()
    assert kernel.uses == ("conv2d:im2col:8x8", "matmul:shared")


def test_kernels_of_one_shape_are_in_no_table() -> None:
    one = result()
    row = next(row for row in one.rows if row.verdict == "spills")
    row.fixed = True
    with pytest.raises(UsageError, match=r"constants in place of push constants; .*: vkconv compile --no-fixed-push"):
        table_of(one.gpus[0], [row])


def test_there_are_tables_of_gpus_that_are_known() -> None:
    assert set(evidence_gpus()) <= {gpu.name for gpu in data().gpus} and "adreno-740" in evidence_gpus()
    with pytest.raises(UsageError, match="did you mean 'adreno-740'"):
        load_evidence("adreno-74")


@pytest.mark.parametrize("gpu", evidence_gpus())
def test_committed_tables_name_shaders_routes_and_their_drivers(gpu: str) -> None:
    table = load_evidence(gpu)
    assert table.gpu == gpu and len(table.kernels) > 50
    assert table.driver == data().drivers[find_gpu(gpu).driver].title
    for use in {use for compiled in table.kernels.values() for use in compiled.uses}:
        op, route, *_ = use.split(":")
        assert route in {one.name for one in OPS[op].routes}
    assert {key[0] for key in table.kernels} <= set(shaders())
    text = (evidence._DATA / f"{gpu}.csv").read_text()
    assert write_evidence(dataclasses.replace(table)) == text
