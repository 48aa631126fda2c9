"""JUnit's XML and CSV of what was judged."""

import csv
from xml.etree import ElementTree

import pytest

from vkconv.cases import Case, to_csv, to_junit
from vkconv.cli.checked import Report

EVIL = "a\x00\x1b[2J\ud800<&\"'\n]]>"
CASES = (
    Case("conv2d", "x by direct", "ok", "", 0.25, 1e-7, 1e-6),
    Case("conv2d", EVIL, "FAILED", EVIL, 0.5, 1.0, 1e-6),
    Case(EVIL, "lost", "error", "the cable"),
    Case("relu", "x", "skipped", "no 16-bit floats"),
)


def test_junit_has_every_case_under_its_group():
    root = ElementTree.fromstring(to_junit(EVIL, CASES))
    assert [root.get(n) for n in ("tests", "failures", "errors", "skipped")] == ["4", "1", "1", "1"]
    assert [suite.get("tests") for suite in root] == ["2", "1", "1"]
    assert float(root[0].get("time")) == 0.75
    assert [[child.tag for child in case] for case in root.iter("testcase")] == [
        [],
        ["failure"],
        ["error"],
        ["skipped"],
    ]
    assert root[0][1][0].get("message").startswith("a\\x00\\x1b[2J\\ud800<&")


def test_csv_has_a_line_for_each_case():
    rows = list(csv.DictReader(to_csv(CASES[:1] + CASES[2:]).splitlines()))
    assert [row["outcome"] for row in rows] == ["ok", "error", "skipped"]
    assert float(rows[0]["max_rel"]) == 1e-7


@pytest.mark.parametrize(
    ("cases", "failed", "outcomes"),
    [
        (CASES[:1], False, ["ok", "ok"]),
        (CASES[:1], True, ["ok", "FAILED"]),  # wrong where values share memory: no node is
        (CASES[:2], True, ["ok", "FAILED", "ok"]),  # told once
        ((), False, ["ok"]),
    ],
)
def test_a_report_that_failed_has_a_case_that_did(cases, failed, outcomes, tmp_path):
    report = Report("t", [], [], [], ["FAILED: values overlap"], [], {}, failed, cases)
    assert [case.outcome for case in report.judged] == outcomes
    report.save([tmp_path / "r.xml"])
    failures = list(ElementTree.parse(tmp_path / "r.xml").getroot().iter("failure"))
    assert len(failures) == outcomes.count("FAILED")
