"""``vkconv compile`` and ``vkconv compilers`` on a command line, with a program that plays the compilers'."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from cli_kit import on_terminal, vkconv
from compilers_kit import FakeInstalled
from pages import shown

from vkconv.cli.stopping import Terminated
from vkconv.compilers import installed, live, runner
from vkconv.compilers.gpus import Tried
from vkconv.compilers.installed import Manifest

pytestmark = [pytest.mark.long, pytest.mark.share(1)]

CALL = "relu:x=3x5"
GPU = ("--with", "ga102", "--device", "h200")


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeInstalled:
    fake = FakeInstalled(tmp_path)
    monkeypatch.setattr(runner, "installed_for", lambda gpu: fake)
    for module in (installed, live):
        monkeypatch.setattr(module, "installed_for", lambda gpu: fake)
    monkeypatch.setattr(runner, "cache_dir", lambda: tmp_path / "cache")
    return fake


def test_a_call_is_compiled_and_its_pipelines_are_rows(there: FakeInstalled, tmp_path: Path) -> None:
    files = [tmp_path / f"out.{suffix}" for suffix in ("json", "md", "html")]
    code, out, err = vkconv("compile", CALL, *GPU, *(word for file in files for word in ("-o", file)))
    assert (code, err) == (0, "")
    assert "ga102: GeForce RTX 3090, Ampere, sm86, NVK of Mesa 1.2-3~x, planned with h200; occupancy is warps" in out
    assert "ga102: relu:x=3x5,dtype=f32\n" in out and "elementwise" in out and "* " in out
    assert "ga102: 1 pipeline of 1 call, 1 ok, at most 1.5 s" in out
    data = json.loads(files[0].read_text())
    (row,) = data["rows"]
    assert (data["schema"], row["verdict"], row["chosen"], row["phase"]) == ("vkconv.compile/1", "ok", True, "run")
    assert row["code"]["registers"] == row["statistics"]["Number of GPRs"] == row["local"][0]
    assert f"| {row['call']} |" in files[1].read_text() and row["call"] in shown(files[2])
    code, out, _ = vkconv("compile", CALL, *GPU, "--json")
    assert json.loads(out)["rows"] == data["rows"] and len(there.jobs) == 1
    vkconv("compile", CALL, *GPU, "--again")
    assert len(there.jobs) == 2


def test_a_first_choice_that_spills_ends_in_exit_code_1(there: FakeInstalled) -> None:
    there.more = {"Spills to memory": 3, "Fills from memory": 2}
    code, out, err = vkconv("compile", CALL, *GPU)
    assert (code, err) == (1, "")
    assert "3 spills, 2 fills" in out and "1 of first choices FAIL" in out
    code, out, _ = vkconv("compile", "matmul:a=64x64,b=64x64", *GPU, "--route", "register")
    assert code == 0 and "3 spills, 2 fills" in out  # not the planner's


def test_routes_and_parameters_are_swept(there: FakeInstalled) -> None:
    matmul = "matmul:a=512x512,b=512x512"
    code, out, _ = vkconv("compile", matmul, *GPU, "--route", "shared", "--sweep", "tile", "--json")
    rows = json.loads(out)["rows"]
    assert code == 0 and len({row["params"]["tile"] for row in rows}) > 5
    assert len({json.dumps(row["params"]) for row in rows if row["chosen"]}) == 1
    code, out, _ = vkconv("compile", matmul, *GPU, "--route", "all", "--json")
    assert {row["route"] for row in json.loads(out)["rows"]} >= {"shared", "register", "skinny"}


def test_a_subgroup_size_is_asked_for(there: FakeInstalled) -> None:
    _, out, _ = vkconv("compile", CALL, *GPU, "--json")
    _, other, _ = vkconv("compile", CALL, *GPU, "--json", "--subgroup-size", 32)
    assert json.loads(out)["rows"][0]["pipeline"] != json.loads(other)["rows"][0]["pipeline"]


def test_push_constants_are_pushed_or_constants_as_the_device_has_it_or_as_asked(there: FakeInstalled) -> None:
    fixed = {}
    for word in ("", "--fixed-push", "--no-fixed-push"):
        code, out, _ = vkconv("compile", CALL, *GPU, "--json", *word.split())
        (row,) = json.loads(out)["rows"]
        assert code == 0
        fixed[word] = row["fixed"], row["pipeline"]
    assert fixed[""] == fixed["--fixed-push"] and fixed[""][0]  # ga102 is NVIDIA's
    assert not fixed["--no-fixed-push"][0] and fixed["--no-fixed-push"][1] != fixed[""][1]


def test_a_suite_counts_its_calls_and_saves_code(there: FakeInstalled, tmp_path: Path) -> None:
    suite = tmp_path / "some.txt"
    suite.write_text(f"3x {CALL}\nsigmoid:x=3x5\n")
    code, out, _ = vkconv("compile", "--suite", suite, *GPU, "--json", "--dtype", "f16", "--isa", tmp_path / "isa")
    rows = json.loads(out)["rows"]
    assert code == 0 and [(row["call"], row["count"]) for row in rows] == [
        ("relu:x=3x5,dtype=f16", 3),
        ("sigmoid:x=3x5,dtype=f16", 1),
    ]
    assert len(list((tmp_path / "isa").iterdir())) == 2


def test_calls_that_cannot_have_the_type_are_told_and_left_out(there: FakeInstalled, tmp_path: Path) -> None:
    scales = "".join(f",{name}_scale=scalar,{name}_zero=scalar:u8" for name in "aby")
    quantized = f"qlinear_matmul:a=3x5:u8,b=5x4:u8{scales}"
    suite = tmp_path / "some.txt"
    suite.write_text(f"{CALL}\n{quantized}\n")
    code, out, err = vkconv("compile", "--suite", suite, *GPU, "--json", "--dtype", "f16")
    assert code == 0 and [row["call"] for row in json.loads(out)["rows"]] == ["relu:x=3x5,dtype=f16"]
    told = f"left out: {quantized},dtype=f16: it cannot be in f16: qlinear_matmul: a_scale is f16; it must be f32"
    assert told in err
    suite.write_text(f"{CALL}\nrelu:y=3\n")
    code, _, err = vkconv("compile", "--suite", suite, *GPU, "--json", "--dtype", "f16")
    assert code == 2 and "some.txt:2" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((CALL,), "whose compiler? --with adreno-740"),
        ((CALL, "--with", "adreno-74"), "there is no compiler for a GPU 'adreno-74' (did you mean 'adreno-740'?)"),
        ((*GPU,), "nothing to measure: give calls, models or --suite"),
        ((CALL, *GPU, "--all-ops"), "--all-ops has calls of its own"),
        ((CALL, *GPU, "--max-seconds", "0"), "--max-seconds 0 is no number of seconds above 0, at most 3600"),
        ((CALL, *GPU, "--max-seconds", "nan"), "--max-seconds nan is no number"),
        ((CALL, *GPU, "--route", "chosen,all"), "chosen is the planner's own, and goes alone"),
        ((CALL, *GPU, "--route", "nearest"), "there is no route 'nearest'"),
        ((CALL, *GPU, "--sweep", "tile"), "no route here has a parameter 'tile'"),
        ((CALL, *GPU, "--dtype", "f33"), "'f33' is no element type (did you mean 'f32'?)"),
        ((CALL, *GPU, "-o", "out.csv"), "-o out.csv: no format for '.csv'"),
        ((CALL, "--with", "ga102", "--device", "nothing"), "no device 'nothing'"),
        (("matmul:a=64x64,b=64x64", *GPU, "--route", "cooperative"), "there is nothing to compile for ga102"),
    ],
)
def test_what_is_wrong_is_told(there: FakeInstalled, words: tuple[str, ...], said: str) -> None:
    code, out, err = vkconv("compile", *words)
    assert (code, out) == (2, "") and said in err, err
    assert not there.jobs


def test_a_driver_that_does_not_start_is_exit_code_3(there: FakeInstalled) -> None:
    there.start = '{"error": "vkCreateInstance", "result": -9}'
    code, _, err = vkconv("compile", CALL, *GPU)
    assert code == 3 and err == "error: ga102: its driver does not start: vkCreateInstance (-9)\n  said on stderr\n"


# ---- the compilers


def test_compilers_are_listed_whether_they_are_installed_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VKCONV_COMPILERS", str(tmp_path))
    (tmp_path / "amd64").mkdir()
    manifest = Manifest({"mesa-vulkan-drivers": Tried("99.1", "0" * 64)})
    (tmp_path / "amd64" / "installed.json").write_bytes(msgspec.json.encode(manifest))
    code, out, err = vkconv("compilers")
    assert (code, err) == (0, "")
    assert "the set arm64 is not installed: vkconv compilers install arm64" in out
    assert "the set amd64 is NOT as it was tried: mesa-vulkan-drivers is 99.1, and " in out
    code, out, _ = vkconv("compilers", "--json")
    data = json.loads(out)
    by_name = {row["gpu"]: row for row in data["gpus"]}
    assert by_name["navi31"]["installed"] == "Mesa 99.1" and by_name["mali-g610"]["installed"] == ""
    assert data["sets"]["arm64"] is None and data["sets"]["amd64"]["version"] == "99.1"
    assert by_name["mali-g610"]["traps"] and by_name["adreno-740"]["planned_with"] == "adreno-740-turnip"


def test_a_gpu_without_its_compiler_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKCONV_COMPILERS", str(tmp_path))
    for words in (("compile", CALL, *GPU), ("devices", "--with", "ga102", "--dump")):
        code, _, err = vkconv(*words)
        assert code == 2 and err.endswith("vkconv compilers install amd64\n")


def test_devices_takes_one_of_here_and_not_here() -> None:
    code, _, err = vkconv("devices", "--with", "ga102", "--device", "h200")
    assert code == 2 and "one of them" in err
    code, _, err = vkconv("devices", "--with", "ga1o2")
    assert code == 2 and "did you mean 'ga102'?" in err


def test_install_knows_its_sets() -> None:
    code, _, err = vkconv("compilers", "install", "amd46")
    assert code == 2 and "there is no set 'amd46' (did you mean 'amd64'?); amd64, arm64" in err


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_what_was_compiled_before_it_was_stopped_is_told_and_saved(
    there: FakeInstalled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: type, code: int
) -> None:
    @contextlib.contextmanager
    def bar() -> Iterator[object]:
        def tell(what: str, done: int, count: int) -> None:
            raise stop

        yield tell

    # The second one knows what the first compiled: launches that push.
    for command, words, rows in (("compile", ("--no-fixed-push",), 1), ("estimate", (), 2)):
        monkeypatch.setattr(f"vkconv.cli.{command}.bar", bar)
        saved = tmp_path / f"{command}.json"
        calls = ("relu:x=3x5", "softmax:x=3x5", "matmul:a=3x5,b=5x3")
        ended, out, err = vkconv(command, *calls, *words, *GPU, "--jobs", "1", "-o", saved, "-o", tmp_path / "r.html")
        assert ended == code and "stopped by" in err and "INCOMPLETE: stopped by" in out
        data = json.loads(saved.read_text())
        assert data["incomplete"].startswith("stopped by")
        assert [row["call"].partition(",")[0] for row in data["rows"]] == list(calls[:rows])
        assert "INCOMPLETE" in (tmp_path / "r.html").read_text()


@pytest.mark.long
@pytest.mark.parametrize("command", ["compile", "estimate"])
def test_tables_fit_a_terminal_of_100_columns(
    there: FakeInstalled, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    code, lines, broken = on_terminal(monkeypatch, command, "softmax:x=8x250", *GPU, "--route", "all")
    assert (code, broken) == (0, []) and len(lines) > 5
