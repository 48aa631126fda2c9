"""Boards behind workers: what the outcomes of their jobs come to, with workers that are no processes."""

import json

import pytest

from vkconv.bench.boards import measure_boards, open_boards, selected
from vkconv.bench.html import html
from vkconv.bench.rows import Floors, Header, Result, Row, header_lines, mark_best, result_table, screen_tables
from vkconv.bench.runner import Task
from vkconv.bench.sampling import BenchOptions
from vkconv.bench.suites import parse_entries
from vkconv.check.conformance import checks, row_of
from vkconv.cli import boards, main
from vkconv.core import UsageError
from vkconv.device import load_device
from vkconv.workers import Outcome, Workers, labels, parse_url

SPEEDS = {"quick_gflops": 9.0, "slow_gflops": 1.0, "reference_gflops": 1.0, "gbps": 9.0, "row_s": 0.1}
DEVICES = {"tcp://a:1": "mali-g57", "tcp://b:2": "adreno-618", "tcp://c:3": "mali-g57", "tcp://d:4": "mali-g57"}
NAMES = {"tcp://a:1": "tcp://a:1", "tcp://b:2": "board", "tcp://c:3": "tcp://c:3", "tcp://d:4": "broken"}


class Future:
    def __init__(self, status, value):
        self.status, self.value = status, value

    def add_done_callback(self, tell):
        if self.status != "pending":
            tell(self)

    def result(self):
        return self.value

    def exception(self):
        return self.value

    def cancel(self):
        self.status = "cancelled"


class KilledWorker(Exception):  # noqa: N818
    """By its name the library's own."""


class Client:
    """Jobs end as they say they do; the worker ``gone`` is never heard of again once it has a job that hangs."""

    def __init__(self, addresses, status="running"):
        self.alive, self.status, self.cancelled = dict.fromkeys(addresses, 1), status, []

    def submit(self, function, *args, workers, **options):
        assert options == {"allow_other_workers": False, "pure": False, "retries": 0}
        status, value = function(*args)
        if status == "pending":
            del self.alive[workers[0]]
        return Future(status, value)

    def nthreads(self):
        return self.alive

    def cancel(self, futures):
        self.cancelled += futures


def joined(addresses, **more):
    workers = object.__new__(Workers)
    workers.url, workers._client = "dask://host:1", Client(addresses, **more)
    return workers


def test_each_worker_does_its_jobs_in_order_and_a_lost_one_ends(monkeypatch):
    monkeypatch.setattr("vkconv.workers._POLL_S", 0.01)
    jobs = {
        "a": [("finished", n) for n in range(3)],
        "b": [("finished", 0), ("pending", None), ("finished", 2)],
        "c": [("error", ValueError("no \n good")), ("error", KilledWorker()), ("finished", 2)],
        "d": [],
    }
    found = list(joined(jobs).each(lambda *job: job, jobs))
    by_worker = {name: [o for o in found if o.worker == name] for name in jobs}
    assert [(o.index, o.value) for o in by_worker["a"]] == [(0, 0), (1, 1), (2, 2)]
    assert [(o.ok, o.lost) for o in by_worker["b"]] == [(True, False), (False, True)]
    assert [(o.error, o.lost) for o in by_worker["c"]] == [("no good", False), ("the worker was lost", True)]
    assert by_worker["d"] == []


@pytest.mark.parametrize("status", ["pending", "cancelled"])
def test_a_lost_scheduler_ends_all(monkeypatch, status):
    monkeypatch.setattr("vkconv.workers._POLL_S", 0.01)
    workers = joined("ab", status="connecting")
    found = list(workers.each(lambda: (status, None), {"a": [()] * 2, "b": [()]}))
    assert {(o.worker, o.index, o.error, o.lost) for o in found} == {
        (name, 0, "the scheduler dask://host:1 was lost", True) for name in "ab"
    }


def test_what_still_runs_is_cancelled_when_nobody_asks_any_more():
    workers = joined("ab")
    running = workers.each(lambda status: (status, None), {"a": [("finished",)], "b": [("pending",)]})
    assert next(running).worker == "a"
    running.close()
    assert len(workers._client.cancelled) == 1


@pytest.mark.parametrize(
    "text",
    ["dask://host", "host:1", "dask://:1", "dask://host:0", "dask://host:65536", "dask://host:x", "tcp://h:1", ""],
)
def test_an_address_that_is_none_says_how_one_looks(text):
    with pytest.raises(UsageError, match=r"dask://HOST:PORT.*dask://127\.0\.0\.1:8786"):
        parse_url(text)


def test_addresses():
    assert parse_url("dask://lab.local:8786") == parse_url("dask://lab.local:8786/") == "tcp://lab.local:8786"
    assert parse_url("dask://[::1]:5") == "tcp://[::1]:5"


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "dask", None)
    with pytest.raises(UsageError, match=r"pip install 'vkconv\[workers\]'"):
        Workers("dask://host:1")


def test_boards_are_called_by_their_names_or_devices_and_never_two_the_same():
    names = {"t1": "t1", "t2": "pixel", "t3": "t3", "t4": "t4", "t5": "pixel"}
    devices = {"t1": "Mali-G57", "t2": "Mali-G57", "t3": "Mali-G57"}
    made = labels(names, devices)
    assert made == {"t1": "Mali-G57", "t2": "pixel", "t3": "Mali-G57 #2", "t4": "t4", "t5": "pixel #2"}


def test_a_worker_says_which_device_of_its_board_it_means(monkeypatch):
    monkeypatch.delenv("VKCONV_DEVICE", raising=False)
    assert selected("auto") == "auto"
    monkeypatch.setenv("VKCONV_DEVICE", "Mali")
    assert selected("auto") == "Mali"
    assert selected("1") == "1"


class Stub:
    """Workers that end every job as ``ending(address, index, arguments)`` says."""

    url = "dask://host:1"

    def __init__(self, ending):
        self.names, self.problems, self.ending = NAMES, {"tcp://d:4": "it has vkconv 9, here is 8"}, ending
        self.usable = [address for address in NAMES if address not in self.problems]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def each(self, function, jobs):
        for address, mine in jobs.items():
            for index, job in enumerate(mine):
                if function.__name__ in ("_open", "_facts"):
                    facts = load_device(DEVICES[address]).facts
                    floors = {"copy_gbps": 1.0, "fma_gflops": 2.0}
                    opened = {"facts": facts, "floors": floors, "speeds": SPEEDS}
                    outcome = Outcome(address, index, opened if function.__name__ == "_open" else facts)
                else:
                    outcome = self.ending(address, index, *job)
                yield outcome
                if outcome.lost:
                    break


def test_rows_of_boards_are_told_apart_in_every_form():
    def ending(address, index, task, device, options, floors):
        assert floors == Floors(copy_gbps=1.0, fma_gflops=2.0) and device == "auto"
        if address == "tcp://b:2" and index == 1:
            return Outcome(address, index, error="the worker was lost", lost=True)
        if address == "tcp://c:3" and index == 0:
            return Outcome(address, index, error="out of memory")
        row = Row(call=task.entry.text, op="relu", route=task.route or "map", us_median=1.0 + index)
        return Outcome(address, index, row)

    workers = Stub(ending)
    opened = open_boards(workers, "auto")
    assert [board.label for board in opened.boards.values()] == sorted(board.label for board in opened.boards.values())
    entries = [entry for n in range(9, 13) for entry in parse_entries(f"relu:x={n}")]
    tasks = {address: [Task(entry) for entry in entries] for address in opened.boards}
    rows = [*opened.lost, *measure_boards(workers, opened, tasks, "auto", BenchOptions())]
    assert [(r.device, r.check, r.why) for r in rows if r.check != "ok"] == [
        ("broken", "lost", "it has vkconv 9, here is 8"),
        ("Mali-G57 #2", "error", "out of memory"),
        ("board", "lost", "the worker was lost; 2 more rows of it were not measured"),
    ]
    mark_best(rows)
    assert not any(row.best for row in rows)  # one route each: other boards are no routes
    header = Header(
        device="4 boards",
        device_key="",
        driver="",
        vulkan="",
        versions={},
        date="",
        calls="",
        options={},
        forced={},
        quirks=[],
        boards=list(opened.boards.values()),
    )
    result = Result(header=header, rows=rows)
    assert result_table(result).columns[0].name == "device"
    assert all(table.columns[0].name == "device" for table in screen_tables(result))
    lines = "\n".join(header_lines(header))
    assert "board: Turnip Adreno (TM) 618, driver" in lines and "Mali-G57 #2: Mali-G57, driver" in lines
    page = html(result)
    assert "Mali-G57 #2" in page and "floors of its own" not in page  # no intensity, no roofline


def test_the_check_of_devices_is_one_report(monkeypatch, tmp_path, capsys):
    def ending(address, index, check, device, limits):
        if address == "tcp://b:2" and index == 1:
            return Outcome(address, index, error="the worker was lost", lost=True)
        wrong = address == "tcp://a:1" and index == 0
        return Outcome(address, index, row_of(check, *(("FAILED", "y is wrong") if wrong else ("ok",))))

    monkeypatch.setattr(boards, "Workers", lambda url: Stub(ending))
    page = tmp_path / "page.json"
    with pytest.raises(SystemExit) as done:
        main(["check", "--all-ops", "--op", "relu", "--workers", "dask://host:1", "-o", str(page)])
    assert done.value.code == 1
    out = capsys.readouterr().out
    work = checks(load_device("adreno-618"), ["relu"])
    assert f"the worker was lost while it checked {work[1].text} by {work[1].route}" in out
    assert f"{len(work) - 2} more were not checked" in out
    assert "3 of 4 boards failed: Mali-G57, board, broken" in out
    assert "on Mali-G57: vkconv check relu:" in out
    told = {board["board"]: board for board in json.loads(page.read_text())["boards"]}
    assert told["Mali-G57"]["failed"] == 1 and told["Mali-G57 #2"]["failed"] == 0
    assert told["broken"]["problem"] == "it has vkconv 9, here is 8"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["bench", "relu:x=9", "--workers", "host:1"], "dask://HOST:PORT"),
        (["check", "relu:x=9", "--workers", "dask://h"], "dask://HOST:PORT"),
        (["check", "relu:x=9", "--workers", "dask://h:1", "--dump", "d"], "--dump writes files here"),
    ],
)
def test_wrong_usage(argv, words, capsys):
    with pytest.raises(SystemExit) as done:
        main(argv)
    assert done.value.code == 2
    assert words in capsys.readouterr().err
