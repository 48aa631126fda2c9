"""A missing package must not pass for a test that ran."""

import os
import subprocess
import sys

import pytest
from required import required, unavailable

pytestmark = pytest.mark.long

MODULE = """
from required import required
required("pytest", "vkconv_has_no_such_package")
def test_it(): pass
"""


@pytest.mark.parametrize("ci", ["", "true"])
def test_what_is_missing_is_shown_and_fails_in_ci(ci, monkeypatch):
    monkeypatch.setenv("CI", ci)
    required("pytest", "numpy")
    outcome = pytest.fail.Exception if ci else pytest.skip.Exception
    with pytest.raises(outcome, match="no such device"):
        unavailable("no such device")


@pytest.mark.parametrize(("ci", "code"), [("", 5), ("true", 2)])
def test_a_module_that_needs_a_missing_package(ci, code, monkeypatch, tmp_path):
    """Exit code 5: no test was collected; 2: the collection failed."""
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    (tmp_path / "test_module.py").write_text(MODULE)
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "test_module.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert "make setup installs vkconv_has_no_such_package" in done.stdout
