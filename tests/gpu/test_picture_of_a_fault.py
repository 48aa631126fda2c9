"""The picture of a planted fault in README.md has the words that `vkconv check` says of it."""

import pytest
import readme_pictures

pytestmark = pytest.mark.gpu


def test_the_fault_is_found_as_it_is_drawn(monkeypatch):
    monkeypatch.setenv("VKCONV_MEASURED", "off")
    drawn = (readme_pictures.FOLDER / "check.svg").read_text()
    found = readme_pictures.words(readme_pictures.check())
    assert found == readme_pictures.words(drawn), "it is stale: python tools/readme_pictures.py check"
    assert "the&#160;last&#160;3&#160;columns" in drawn
