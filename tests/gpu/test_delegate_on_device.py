"""Delegation on a device: regions on Vulkan and on ONNX Runtime together give what ONNX Runtime gives for the whole."""

import numpy as np
import pytest
from required import required

required("onnx", "onnxruntime")
import delegated_models as models  # noqa: E402

from vkconv.backend.runtime import select_device  # noqa: E402
from vkconv.core import InputError  # noqa: E402
from vkconv.delegate import DelegatedSession, partition  # noqa: E402

pytestmark = pytest.mark.gpu
MODELS = {
    "a determinant": (models.conv_det_conv, (1, 3, 5, 5)),
    "a subgraph": (models.with_subgraph, (2, 3)),
    "half precision": (models.half_precision_inside, (3, 3)),
    "nothing refused": (models.all_taken, (2, 3)),
}


@pytest.mark.parametrize("name", MODELS)
def test_regions_together_give_what_onnxruntime_gives(name, device):
    import onnxruntime

    make, shape = MODELS[name]
    model = make()
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    reference = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = reference.run(None, {"x": x})
    parts = partition(model, select_device(device)[1])
    with DelegatedSession(parts, device, fallback="onnxruntime") as session:
        got = session.run({"x": x})
        again = session.run({"x": x})
        assert list(got) == [output.name for output in model.graph.output]
        for value, want in zip(got.values(), wanted, strict=True):
            np.testing.assert_allclose(value, want, rtol=0, atol=2e-3 * max(1.0, np.abs(want).max()))
        assert all(again[k].tobytes() == got[k].tobytes() for k in got)
        assert len(session.times_us) == len(parts.regions)
        assert str(session.table()).count("FALLBACK: onnxruntime") == sum(not r.taken for r in parts.regions)
        with pytest.raises(InputError, match="takes the inputs x, and was given none"):
            session.run({})
