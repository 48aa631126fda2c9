"""torch's exported programs, by the ops' references, against torch. Skipped where torch is not installed: nothing else
of vkconv needs it."""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; make setup does without it")

from vkconv.check.reference import reference_outputs  # noqa: E402
from vkconv.core import ModelError, UnsupportedError  # noqa: E402
from vkconv.graph import load_model  # noqa: E402
from vkconv.graph.aten.fx import DTYPES  # noqa: E402
from vkconv.graph.aten.promotion import promoted  # noqa: E402
from vkconv.graph.aten.view import TensorType  # noqa: E402

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
nn, F = torch.nn, torch.nn.functional


class Images(nn.Module):
    """Convolutions of every kind, pooling, normalization, resampling."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Conv2d(5, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.Conv2d(6, 6, 3, padding=2, dilation=2, groups=3)]
        )
        self.up, self.norm, self.slope = nn.ConvTranspose2d(6, 4, 3, 2, 1, 1), nn.GroupNorm(2, 4), nn.PReLU(4)

    def forward(self, x):
        for layer in self.layers:
            x = F.silu(layer(x))
        up = self.slope(self.norm(self.up(x)))
        pooled = F.max_pool2d(up, 3, 2, 1), F.avg_pool2d(up, 2, ceil_mode=True), F.adaptive_avg_pool2d(up, 1)
        resized = F.interpolate(x, scale_factor=2, mode="bilinear"), F.interpolate(x, size=(5, 9))
        pooled += F.max_pool2d(x, 2, return_indices=True)
        return (*pooled, *resized, F.pixel_shuffle(x[:, :4], 2), F.hardswish(F.pad(x, (1, 2, 0, 3))))


class Words(nn.Module):
    """A block of a transformer."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.qkv = nn.Embedding(11, 12), nn.LayerNorm(12), nn.Linear(12, 36)
        self.out, self.more = nn.Linear(12, 12), nn.Linear(12, 20, bias=False)

    def forward(self, i):
        x = self.embed(i)
        n, length, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(n, length, 3, 3, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, length, 12)
        y = x + self.out(y)
        a, b = F.gelu(self.more(y)).chunk(2, -1)
        return (a * torch.sigmoid(b)).softmax(-1), y.mean(1), y.argmax(-1), y.amax(-1, keepdim=True)


class Sums(nn.Module):
    """Promotion of types, and what moves values."""

    def forward(self, x, i):
        y = torch.where(x > i, 2 * x - 1, i / 3) + torch.arange(5)
        stacked = torch.stack([y, x.clamp(-1, 0.5).rsqrt().isnan().to(y.dtype)], 1)
        y[1:, 2:4] = i[1:, :2].to(y.dtype)
        y = torch.fmod(y, 2.5)[:, i[0]]
        picked = y, stacked[:, :, ::2].flip(-1), torch.cat([x, i], 1), x.index_select(1, i[0, :3].abs())
        picked += torch.log1p(x), torch.log10(x.abs() + 1), F.hardshrink(x, 0.7), (x > 0) & (i > 2)
        return (*picked, (x**2).sum(1), x.add(i, alpha=3), i.eq(2), x.cumsum(1), x.repeat(2, 3), F.leaky_relu(x, 0.3))


def held(module, *inputs):
    torch.manual_seed(3)
    module = module().eval()
    for buffer in module.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    with torch.no_grad():
        wanted = module(*inputs)
        graph = load_model(torch.export.export(module, inputs))
    found = reference_outputs(graph, dict(zip(graph.inputs, (x.numpy() for x in inputs), strict=True)))
    assert len(found) == len(wanted)
    for (name, array), like in zip(found.items(), wanted, strict=True):
        assert array.dtype == like.numpy().dtype and array.shape == tuple(like.shape), name
        most = 2e-6 * float(like.float().abs().max() + 1)
        np.testing.assert_allclose(array, like.numpy(), rtol=0, atol=most, err_msg=name)
    return graph


def test_images():
    graph = held(Images, torch.randn(2, 5, 9, 7, generator=torch.Generator().manual_seed(1)))
    used = {node.op for node in graph.nodes}
    assert {"silu", "hard_swish", "group_norm", "prelu", "resize", "depth_to_space", "conv_transpose2d"} <= used


def test_words():
    graph = held(Words, torch.tensor([[1, 5, 3, 9, 0], [2, 2, 10, 4, 7]]))
    assert [node.op for node in graph.nodes].count("attention") == 1


def test_sums():
    held(Sums, torch.linspace(-2, 2, 15).view(3, 5), torch.arange(15).view(3, 5) % 4)


def test_types_of_operands_together_are_torchs():
    """Of any two operands, tensors with and without dimensions and numbers."""
    given = [(torch.zeros(s, dtype=t), TensorType(s, d)) for t, d in DTYPES.items() for s in ((), (2,))]
    given += [(number, number) for number in (True, 3, 2.5)]
    for (a, ours), (b, others) in itertools.product(given, given):
        if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
            assert promoted([ours, others]) is DTYPES[torch.result_type(a, b)], (ours, others)


def test_open_sizes_and_files(tmp_path):
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()
    x = torch.randn(2, 3, 6, 5)
    program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("n")},))
    torch.export.save(program, tmp_path / "m.pt2")
    graph = load_model(tmp_path / "m.pt2")
    assert load_model((tmp_path / "m.pt2").read_bytes()).nodes == graph.nodes
    assert not graph.is_static
    for n in (1, 3):
        x = torch.randn(n, 3, 6, 5)
        (found,) = reference_outputs(graph, {next(iter(graph.inputs)): x.numpy()}).values()
        np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=0, atol=1e-6)


def test_what_is_missing_is_named(tmp_path):
    class Sorted(nn.Module):
        def forward(self, x):
            return x.sort(-1)[0] + torch.linalg.det(x)

    with pytest.raises(UnsupportedError, match=r"sort\.default \(sort\): vkconv has no such operator"):
        load_model(torch.export.export(Sorted(), (torch.randn(3, 3),)))
    (tmp_path / "m.pt2").write_bytes(b"PK no archive")
    with pytest.raises(ModelError, match="does not read it"):
        load_model(tmp_path / "m.pt2")


class Streaming(nn.Module):
    """A convolution that keeps the end of what came before, and keys that a run adds one to."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3).requires_grad_(False)
        self.register_buffer("past", torch.zeros(1, 4, 2))
        self.register_buffer("keys", torch.full((2, 6, 4), -3.5))
        self.register_buffer("seen", torch.tril(torch.ones(6, 6, dtype=torch.bool)))

    def forward(self, x, place):
        whole = torch.cat([self.past, x], 2)
        self.past.copy_(whole[:, :, -2:])
        y = self.conv(whole)
        self.keys[:, place] = y.mean(2)
        scores = (self.keys * y.amax(2)).sum(-1)
        return scores.masked_fill(~self.seen[place], -1.0), y


def test_what_a_program_keeps_between_runs_is_given_by_who_runs_it():
    module = Streaming().eval()
    program = torch.export.export(module, (torch.randn(1, 4, 5), torch.tensor([0])))
    graph = load_model(program)
    key = "torch.state."
    states = {name.removeprefix(key): output for name, output in graph.metadata.items() if name.startswith(key)}
    assert states == {"b_past": "b_past/next", "b_keys": "b_keys/next"}
    assert [graph.metadata[f"torch.initial.{name}"] for name in states] == ["0.0", "-3.5"]
    held = {n: np.full(graph.inputs[n].dims, float(graph.metadata[f"torch.initial.{n}"]), "f4") for n in states}
    given = [name for name in graph.inputs if name not in states]
    for i in range(4):
        inputs = torch.randn(1, 4, 5), torch.tensor([i])
        wanted = [y.numpy() for y in module(*inputs)]
        found = reference_outputs(graph, {n: x.numpy() for n, x in zip(given, inputs, strict=True)} | held)
        held = {name: found[output].astype("f4") for name, output in states.items()}
        for y, name in zip(wanted, (n for n in graph.outputs if n not in states.values()), strict=True):
            np.testing.assert_allclose(found[name], y, rtol=0, atol=1e-5)


def test_statistics_of_training_are_no_state():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    with pytest.raises(UnsupportedError, match=r"running it changes 1\.running_mean, .*; export the model after eval"):
        load_model(torch.export.export(module, (torch.randn(2, 3, 5, 5),)))
