"""What the planner takes is fit for the compilers of GPUs, and the tables that vkconv keeps of these are true."""

import functools

import pytest
from required import required

from vkconv.compilers.evidence import table_of
from vkconv.compilers.first_choices import compile_words, workloads
from vkconv.compilers.installed import Installed
from vkconv.compilers.rows import Result
from vkconv.device.evidence import load_evidence

GPUS = ("adreno-740", "navi31", "ga102", "apple-m1")
MAX_SECONDS = 5
# By how many distinct calls a workload is no less than it was.
WORKLOADS = {
    "golden": 45,
    "layers f32": 25,
    "layers f16": 25,
    "rec f32": 55,
    "rec f16": 55,
    "det f32": 55,
    "det f16": 55,
}


@functools.cache
def compiled(workload: str, *words: str) -> Result:
    required("rapidocr_onnxruntime", "onnx")
    return compile_words((*dict(workloads())[workload], *words), GPUS, MAX_SECONDS)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_no_first_choice_is_unfit(amd64: Installed, workload: str) -> None:
    result = compiled(workload)
    assert not result.failed, [(row.gpu, row.call, row.route, row.why) for row in result.failed]
    for gpu in GPUS:
        assert len({row.call for row in result.rows if row.gpu == gpu}) >= WORKLOADS[workload]


def test_these_are_all_workloads(amd64: Installed) -> None:
    required("rapidocr_onnxruntime")
    # In f16 the golden calls are held to the tables (tests/pure/ops/kernels): RADV takes 6 s for some.
    assert {name for name, _ in workloads()} == {*WORKLOADS, "golden f16"}


@pytest.mark.parametrize("gpu", GPUS)
def test_the_kept_tables_are_what_the_compilers_say(amd64: Installed, gpu: str) -> None:
    kept = load_evidence(gpu)
    if kept.version != amd64.version:
        pytest.skip(f"the table is of Mesa {kept.version}, and {amd64.version} is installed: tools/evidence.py")
    result = compiled("golden", "--no-fixed-push")
    (header,) = (one for one in result.gpus if one.name == gpu)
    table = table_of(header, [row for row in result.rows if row.gpu == gpu])
    missing = [key for key in table.kernels if key not in kept.kernels]
    assert not missing, "the kernels have changed: docs/compilers.md says how to write the tables anew"
    for key, one in table.kernels.items():
        assert one.measures == kept.kernels[key].measures, key
