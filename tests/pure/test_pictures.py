"""The pictures of README.md that need no device are what vkconv says now."""

from pathlib import Path

import pytest
import readme_pictures

STALE = "is stale: python tools/readme_pictures.py"
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["explain", "roofline"])
def test_a_picture_is_what_vkconv_says(name, monkeypatch):
    monkeypatch.setenv("VKCONV_MEASURED", "off")
    drawn = (readme_pictures.FOLDER / f"{name}.svg").read_text()
    assert readme_pictures.PICTURES[name]() == drawn, f"{name} {STALE}"
    assert "winograd" in drawn if name == "explain" else drawn.count("<circle") == 72 and "copy 11.6 GB/s" in drawn


def test_every_picture_is_in_the_readme_and_asks_for_nothing():
    text = (ROOT / "README.md").read_text()
    for name in readme_pictures.PICTURES:
        assert f"](docs/pictures/{name}.svg)" in text
        picture = (readme_pictures.FOLDER / f"{name}.svg").read_text()
        assert "http" not in picture.replace("http://www.w3.org/2000/svg", "") and "<script" not in picture
