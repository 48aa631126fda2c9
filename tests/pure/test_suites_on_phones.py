"""The suites of the five systems on phones' device files: what is refused there is refused by an assumption that the
error names, never by a limit that every such device has; and no more of it where a system's own rules choose."""

import pytest

from vkconv.bench.suites import read_suite
from vkconv.core import LimitError
from vkconv.device import load_device
from vkconv.plan.planner import Options, plan
from vkconv.plan.single import call_graph

SUITES = (
    *("iree-split-reduction", "iree-backward-data", "iree-backward-data-small"),
    *("ck-grouped-wgrad", "rocmlir-reduce", "executorch-conv2d"),
)
ASSUMED = ("assumed by its device file", "since its device file does not say")


@pytest.mark.long
@pytest.mark.parametrize("name", ["mali-g57", "mali-g715", "adreno-618", "adreno-750", "xclipse-940"])
@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("policy", ["", "iree", "ck", "executorch"])
def test_no_call_is_refused_but_by_what_a_device_file_assumes(policy, suite, name):
    calls, refused = [entry.call for entry in read_suite(suite) if entry.call is not None], []
    for call in calls:
        try:
            plan(call_graph(call), load_device(name), Options(passes=False, policy=policy))
        except LimitError as error:
            assert any(words in str(error) for words in ASSUMED), str(error)
            refused.append(call)
    assert len(calls) >= 7 and len(refused) <= 1
