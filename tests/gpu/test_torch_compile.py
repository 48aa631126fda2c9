"""The backend of torch.compile on the device. Skipped where torch is not installed: nothing else of vkconv needs it."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; make setup does without it")

from vkconv.core import LimitError, UsageError, VkconvError, VkconvWarning  # noqa: E402
from vkconv.torch_backend import compile_graph, reports  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
nn = torch.nn


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(1)


class Cut(nn.Module):
    """Two convolutions with what vkconv does not have between them."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(5, 2, 1)

    def forward(self, x):
        y = self.a(x).relu()
        return self.b(y.sort(-1)[0]), y


def agrees(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5 * float(b.abs().max()))


def test_what_vkconv_lacks_is_left_to_torch_and_counted():
    model, x = Cut().eval(), torch.randn(2, 3, 7, 5)
    compiled = torch.compile(model, backend=compile_graph, dynamic=False)
    with torch.inference_mode():
        agrees(compiled(x), model(x))
        agrees(compiled(2 * x), model(2 * x))
    report = reports()[-1]
    assert (report.parts, report.taken, report.loads, report.failed) == (2, 3, 2, {})
    assert report.left == {("sort.default", "vkconv has no such operator"): 1}
    assert "1 sort.default: vkconv has no such operator" in str(report)


def test_weights_that_change_are_seen():
    model, x = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()).eval(), torch.randn(1, 3, 5, 5)
    compiled = torch.compile(model, backend=compile_graph, dynamic=False)
    with torch.no_grad():
        before = compiled(x).clone()
        model[0].weight.mul_(2)
        after = compiled(x)
        assert not torch.equal(before, after)
        agrees([after], [model(x)])
    assert reports()[-1].loads == 2


def test_gradients_are_left_to_torch():
    model, x = nn.Conv2d(3, 4, 1), torch.randn(1, 3, 5, 5)
    compiled = torch.compile(model, backend=compile_graph, dynamic=False)
    compiled(x).sum().backward()
    assert model.weight.grad is not None
    assert reports()[-1].taken == 0 and "inference_mode" in str(reports()[-1])


def test_a_part_that_no_plan_takes_runs_in_torch_and_is_told(monkeypatch):
    def limited(*_):
        raise LimitError("4 GiB needed, 2 GiB there")

    monkeypatch.setattr("vkconv.torch_backend.load", limited)
    model, x = nn.Conv2d(3, 4, 1).eval(), torch.randn(1, 3, 5, 5)
    compiled = torch.compile(model, backend=compile_graph, dynamic=False)
    with torch.inference_mode(), pytest.warns(VkconvWarning, match="runs in torch: 4 GiB needed"):
        agrees([compiled(x)], [model(x)])
    assert list(reports()[-1].failed.values()) == ["4 GiB needed, 2 GiB there"] and reports()[-1].loads == 0


def test_other_options_are_refused():
    with pytest.raises(UsageError, match="did you mean 'device'"):
        compile_graph(torch.fx.GraphModule({}, torch.fx.Graph()), [], options={"devise": 1})
    with pytest.raises(VkconvError, match="no-such-gpu"):
        compile_graph(torch.fx.GraphModule({}, torch.fx.Graph()), [], options={"device": "no-such-gpu"})
