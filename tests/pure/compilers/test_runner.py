"""Pipelines through compilers' processes: outcomes, what is kept, and processes that end."""

import threading
import time
from pathlib import Path

import pytest
from compilers_kit import FakeInstalled

from vkconv.compilers import runner
from vkconv.compilers.gpus import find_gpu
from vkconv.compilers.pipelines import Pipeline
from vkconv.compilers.runner import Compiled, compile_all
from vkconv.core import DeviceError, UsageError
from vkconv.kernel import Shader

GPU = find_gpu("ga102")


class Some(Pipeline):
    """A pipeline that needs no compiler for its SPIR-V."""

    code = b"\x03\x02\x23\x07" + bytes(20)  # type: ignore[assignment]


def pipeline(bindings: int = 1, local: int = 64) -> Pipeline:
    return Some(Shader("some"), (local, 1, 1), bindings, 8)


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeInstalled:
    fake = FakeInstalled(tmp_path)
    monkeypatch.setattr(runner, "installed_for", lambda gpu: fake)
    monkeypatch.setenv("VKCONV_CACHE_DIR", str(tmp_path / "cache"))
    return fake


def test_each_pipeline_is_compiled_once_and_failures_are_results(there: FakeInstalled) -> None:
    good, aborts, hangs = pipeline(1), pipeline(24), pipeline(25)
    told: list[tuple[int, int]] = []
    found = compile_all(
        GPU, [good, aborts, good, hangs], max_seconds=2, jobs=1, done=lambda done, count: told.append((done, count))
    )
    assert sorted(there.jobs) == ["1", "24", "25"] and told == [(1, 3), (2, 3), (3, 3)]
    assert found[good].executables[0].statistics == {"Number of GPRs": 64} and found[good].compile_ms == 1500
    assert found[aborts].why == "the compiler ended by SIGABRT: Assertion"
    assert found[hangs].why == "the compiler was not done after 2 s"


def test_several_processes_share_the_work(there: FakeInstalled) -> None:
    pipelines = [pipeline(1, local) for local in range(1, 18)]
    found = compile_all(GPU, pipelines, max_seconds=2, jobs=3)
    assert [found[p].executables[0].statistics["Number of GPRs"] for p in pipelines] == list(range(1, 18))


def test_what_was_compiled_is_kept_for_this_driver(there: FakeInstalled) -> None:
    first = compile_all(GPU, [pipeline(1), pipeline(24)], max_seconds=2)
    assert compile_all(GPU, [pipeline(1), pipeline(24)], max_seconds=2) == first
    assert len(there.jobs) == 2
    compile_all(GPU, [pipeline(1)], max_seconds=2, fresh=True)
    assert len(there.jobs) == 3
    there.version = "1.2-4"
    compile_all(GPU, [pipeline(1)], max_seconds=2)
    assert len(there.jobs) == 4
    compile_all(find_gpu("ga106"), [pipeline(1)], max_seconds=2)
    assert len(there.jobs) == 5


def test_a_result_is_kept_for_the_time_that_it_had(there: FakeInstalled) -> None:
    compile_all(GPU, [pipeline(1), pipeline(25)], max_seconds=2)
    found = compile_all(GPU, [pipeline(1), pipeline(25)], max_seconds=1)
    assert [found[p].outcome for p in (pipeline(1), pipeline(25))] == ["timeout", "timeout"]
    assert "1 s" in found[pipeline(1)].why and len(there.jobs) == 2
    compile_all(GPU, [pipeline(25)], max_seconds=3)
    assert there.jobs[-1] == "25" and len(there.jobs) == 3


def test_what_was_not_done_in_time_is_tried_again(there: FakeInstalled) -> None:
    """The machine may have been busy."""
    compile_all(GPU, [pipeline(25)], max_seconds=2)
    compile_all(GPU, [pipeline(25)], max_seconds=2)
    assert there.jobs == ["25", "25"]


def test_a_damaged_result_is_made_again(there: FakeInstalled, tmp_path: Path) -> None:
    compile_all(GPU, [pipeline(1)], max_seconds=2)
    (kept,) = (tmp_path / "cache" / "compiled").rglob("*.json")
    kept.write_text(kept.read_text()[:-9])
    assert compile_all(GPU, [pipeline(1)], max_seconds=2)[pipeline(1)].outcome == "compiled"
    assert len(there.jobs) == 2


def test_the_code_is_saved_also_of_what_is_kept(there: FakeInstalled, tmp_path: Path) -> None:
    compile_all(GPU, [pipeline(1)], max_seconds=2)
    compile_all(GPU, [pipeline(1)], max_seconds=2, isa=tmp_path / "new" / "isa")
    (file,) = (tmp_path / "new" / "isa").iterdir()
    assert file.name == f"ga102.some.f32.{pipeline(1).digest[:12]}.txt" and file.read_text() == "code of 64,1,1"


@pytest.mark.parametrize("text", ["a\tb", "a\nb"])
def test_a_folder_that_jobs_cannot_name_is_refused(there: FakeInstalled, tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="--isa"):
        compile_all(GPU, [pipeline(1)], max_seconds=2, isa=tmp_path / text)


def test_a_program_that_ends_is_an_error_with_what_it_said(there: FakeInstalled) -> None:
    with pytest.raises(DeviceError, match=r"ga102: pipeline_statistics ended with 7\n  about to die"):
        compile_all(GPU, [pipeline(29)], max_seconds=2)


def test_a_driver_that_does_not_start_is_an_error(there: FakeInstalled) -> None:
    there.start = '{"error": "vkCreateInstance", "result": -9}'
    with pytest.raises(DeviceError, match=r"ga102: its driver does not start: vkCreateInstance \(-9\)"):
        compile_all(GPU, [pipeline(1)], max_seconds=2)


def test_an_interruption_ends_what_is_being_compiled(there: FakeInstalled) -> None:
    class StoppedError(Exception):
        pass

    def done(count: int, of: int) -> None:
        raise StoppedError

    started = time.monotonic()
    with pytest.raises(StoppedError):
        compile_all(GPU, [pipeline(1), pipeline(28)], max_seconds=60, jobs=2, done=done)
    assert time.monotonic() - started < 30
    assert not [thread for thread in threading.enumerate() if "_serve" in thread.name]
    assert compile_all(GPU, [pipeline(1)], max_seconds=60) and there.jobs.count("1") == 1


def test_digests_tell_apart_what_a_compiler_can() -> None:
    same = pipeline(1)
    others = [
        pipeline(2),
        pipeline(1, 32),
        Some(Shader("some"), (64, 1, 1), 1, 12),
        Some(Shader("some"), (64, 1, 1), 1, 8, 32),
    ]
    assert pipeline(1).digest == same.digest == Some(Shader("other"), (64, 1, 1), 1, 8).digest
    assert len({same.digest, *(other.digest for other in others)}) == 5


def test_an_outcome_has_no_words_where_it_is_good() -> None:
    assert Compiled(outcome="compiled").why == ""
