"""docs/performance.md has the tables that the committed results give, and each result says where it is from."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import performance  # noqa: E402


def test_the_tables_and_the_chart_are_what_the_results_give():
    assert performance.document(performance.DOCUMENT.read_text()) == performance.DOCUMENT.read_text()
    assert performance.chart() == performance.CHART.read_text()
    assert all(f"<!-- table: {name} -->" in performance.DOCUMENT.read_text() for name in performance.TABLES)


def test_every_table_says_what_it_is():
    named = set(performance.sources()) | {"regret", "h200_profiles"}
    assert named == {path.stem for path in performance.RESULTS.glob("*.csv")}
    for source in performance.sources().values():
        assert source.keys() - {"later"} == {"title", "device", "beside", "command", "date"}
        assert source.get("later", "") in {"", *performance.sources()}


@pytest.mark.parametrize("name", performance.sources())
def test_rows_have_times(name):
    assert all(float(row["us"]) > 0 and row["call"] for row in performance.read(name))
    assert performance.ratios(name)


def test_a_stale_document_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(performance, "DOCUMENT", tmp_path / "performance.md")
    monkeypatch.setattr(performance, "CHART", tmp_path / "performance.svg")
    monkeypatch.setattr(performance, "ROOT", tmp_path)
    performance.DOCUMENT.write_text("<!-- table: regret -->\n| old |\n<!-- end -->\n")
    assert performance.main(["--check"]) == 1 and "is not what the results give" in capsys.readouterr().out
    assert performance.main([]) == 0 and performance.main(["--check"]) == 0
    assert "| conv-shapes-60 |" in performance.DOCUMENT.read_text()
