"""The network as a whole: planned within the device's limits, right at every node, the same every time."""

import numpy as np
from network import spectrogram, spotter


def test_every_node_is_right_and_repeats(vk_check):
    vk_check(spotter(), {"x": spectrogram()}, repeat=10)


def test_the_result_is_a_distribution(vk_session):
    session = vk_session(spotter())
    y = session.run({"x": spectrogram(1)})["y"]
    assert y.shape == (1, 12)
    np.testing.assert_allclose(y.sum(), 1, rtol=1e-5)


def test_the_depthwise_layer_takes_the_route_made_for_it(vk_session, vk_device):
    if vk_device.routes:
        return  # forced with --vk-route
    routes = {node.name: node.route for node in vk_session(spotter()).plan.nodes}
    assert "depthwise" in routes["depthwise"]  # or subgroup_depthwise, depthwise_planes
