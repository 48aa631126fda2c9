"""Options and marks of the pytest plugin that are wrong."""

import pytest

from vkconv.core import VkconvError
from vkconv.pytest_plugin import _asked_for, _quirks


class Config:
    def __init__(self, routes=(), limits=""):
        self.options = {"--vk-route": list(routes), "--vk-limits": limits}

    def getoption(self, name):
        return self.options[name]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (Config(["conv2d"]), "--vk-route 'conv2d' is not OP=ROUTE"),
        (Config(["conv2d=direkt"]), r"conv2d has no route 'direkt' \(did you mean 'direct'\?\)"),
        (Config(["conf2d=direct"]), r"there is no op 'conf2d' \(did you mean 'conv2d'\?\)"),
        (Config(["identity=x"]), "identity has no route 'x'.*it has none"),
        (Config(limits="mali-g5"), r"no device 'mali-g5' \(did you mean 'mali-g57'\?\)"),
        (Config(limits="absent.json"), "absent.json: no such file"),
    ],
)
def test_wrong_options(config, words):
    with pytest.raises(VkconvError, match=words):
        _asked_for(config)


def test_options():
    routes, limits = _asked_for(Config(["conv2d=direct", "matmul=shared", "conv2d=im2col_gemm"], "mali-g57"))
    assert routes == {"conv2d": "im2col_gemm", "matmul": "shared"} and limits.name == "Mali-G57"
    assert _asked_for(Config()) == ({}, None)


def test_a_mark_names_quirks_that_there_are():
    assert _quirks(pytest.mark.vk_quirk("adreno-im2col-band").mark) == ("adreno-im2col-band",)
    for mark, words in ((pytest.mark.vk_quirk("adreno"), "knows no quirk 'adreno'"), (pytest.mark.vk_quirk(), "needs")):
        with pytest.raises(VkconvError, match=words):
            _quirks(mark.mark)
