"""The memory that published networks are planned to take, against the least that any plan could."""

from pathlib import Path

import pytest
from graph_kit import made_up_device
from required import required

from vkconv.core import LimitError
from vkconv.device import load_device
from vkconv.graph import load_model
from vkconv.plan.planner import Options, plan

pytestmark = pytest.mark.long

required("onnx")
NAMES = ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet")
NAMES += ("vgg19", "zfnet512")


def light(name):
    """One of the nine networks that the onnx wheel has, without their weights."""
    import onnx.backend.test

    return load_model(Path(onnx.backend.test.__file__).parent / "data" / "light" / f"light_{name}.onnx")


@pytest.mark.parametrize("name", NAMES)
def test_the_peak_is_within_a_tenth_of_what_is_alive_at_once(name):
    graph = light(name)
    for device in ("lavapipe", "h200"):
        memory = plan(graph, load_device(device), Options(measured={})).plan.memory
        assert memory.lower_bound_bytes <= memory.activations_bytes <= 1.10 * memory.lower_bound_bytes


def test_a_network_that_does_not_fit_is_refused_with_both_numbers():
    graph = light("squeezenet")
    needed = plan(graph, load_device("h200"), Options(measured={})).plan.memory.device_bytes
    plan(graph, made_up_device(heap=needed), Options(measured={}))
    with pytest.raises(LimitError, match=rf"take .*\({needed} bytes\), the memory of .*\({needed - 1} bytes\)"):
        plan(graph, made_up_device(heap=needed - 1), Options(measured={}))
