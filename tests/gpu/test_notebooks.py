"""The notebooks of the documentation run from the first cell to the last, and show what they say that they show."""

from pathlib import Path

import pytest
from required import required

required("nbformat", "nbclient", "ipykernel", "pandas")
import nbformat  # noqa: E402
from nbclient import NotebookClient  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]  # of the client, not of vkconv
FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == ["check_a_call", "compare_routes", "run_a_network"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) >= 3 and not any(cell.outputs or cell.execution_count for cell in code)  # none is committed
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in code for output in cell.outputs]
    assert not [output for output in shown if output.output_type == "error" or output.get("name") == "stderr"]
    assert any("<table" in output.get("data", {}).get("text/html", "") for output in shown)
