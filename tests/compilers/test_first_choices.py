"""What the planner takes is fit for the compilers of GPUs, and the tables that vkconv keeps of these are true."""

import functools
import json
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
from cli_kit import vkconv
from required import required

from vkconv.compilers.evidence import table_of
from vkconv.compilers.installed import Installed
from vkconv.compilers.rows import Result
from vkconv.device.evidence import load_evidence

GPUS = ("adreno-740", "navi31", "ga102", "apple-m1")
MAX_SECONDS = 5


@functools.cache
def compiled(*words: str) -> Result:
    seconds = ("--max-seconds", str(MAX_SECONDS))
    code, out, err = vkconv("compile", *words, "--with", ",".join(GPUS), *seconds, "--json")
    assert code in (0, 1) and out, err
    return msgspec.convert(json.loads(out), type=Result)


def test_no_first_choice_of_the_golden_calls_is_unfit(amd64: Installed) -> None:
    result = compiled("--suite", "golden")
    assert {row.gpu for row in result.rows} == set(GPUS)
    assert not result.failed, [(row.gpu, row.call, row.route, row.why) for row in result.failed]


@pytest.mark.parametrize("suite", ["resnet50", "mobilenet"])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_no_first_choice_of_a_networks_layers_is_unfit(amd64: Installed, suite: str, dtype: str) -> None:
    result = compiled("--suite", suite, "--dtype", dtype)
    assert not result.failed, [(row.gpu, row.call, row.route, row.why) for row in result.failed]
    assert {row.gpu for row in result.rows} == set(GPUS)


@pytest.mark.parametrize("model", ["ch_PP-OCRv4_rec_infer.onnx", "ch_PP-OCRv4_det_infer.onnx"])
def test_no_first_choice_of_a_network_is_unfit(amd64: Installed, model: str) -> None:
    required("rapidocr_onnxruntime", "onnx")
    spec = find_spec("rapidocr_onnxruntime")
    assert spec and spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0]) / "models" / model
    result = compiled(str(path), "--shape", f"x={'1x3x48x320' if 'rec' in model else '1x3x640x640'}")
    assert not result.failed and len(result.rows) > 100


@pytest.mark.parametrize("gpu", GPUS)
def test_the_kept_tables_are_what_the_compilers_say(amd64: Installed, gpu: str) -> None:
    kept = load_evidence(gpu)
    if kept.version != amd64.version:
        pytest.skip(f"the table is of Mesa {kept.version}, and {amd64.version} is installed: tools/evidence.py")
    result = compiled("--suite", "golden")
    (header,) = (one for one in result.gpus if one.name == gpu)
    table = table_of(header, [row for row in result.rows if row.gpu == gpu])
    missing = [key for key in table.kernels if key not in kept.kernels]
    assert not missing, "the kernels have changed: docs/compilers.md says how to write the tables anew"
    for key, one in table.kernels.items():
        assert one.measures == kept.kernels[key].measures, key
