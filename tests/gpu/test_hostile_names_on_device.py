"""Commands that compute, on a model whose every name is hostile: nothing of it reaches the terminal or a page."""

import pytest
from hostile_names import DEVICE, hostile_output

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("command", DEVICE, ids=" ".join)
def test_a_command_shows_no_name_raw(command, tmp_path, monkeypatch, device):
    monkeypatch.setenv("VKCONV_MEASURED", "off")
    monkeypatch.setenv("VKCONV_DEVICE", device)
    assert not hostile_output(DEVICE[command], tmp_path)
