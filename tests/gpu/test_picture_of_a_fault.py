"""The picture of a planted fault in README.md has the words that `vkconv check` says of it."""

import multiprocessing

import pytest
import readme_pictures

pytestmark = pytest.mark.gpu


def test_the_fault_is_found_as_it_is_drawn(monkeypatch):
    monkeypatch.setenv("VKCONV_MEASURED", "off")
    drawn = (readme_pictures.FOLDER / "check.svg").read_text()
    # In a process of its own: a device keeps the pipelines of kernels that it has met.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = readme_pictures.words(pool.apply(readme_pictures.check))
    assert found == readme_pictures.words(drawn), "it is stale: python tools/readme_pictures.py check"
    assert "the&#160;last&#160;3&#160;columns" in drawn
