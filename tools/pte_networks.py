"""The networks that tools/pte_models.py lowers: small ones, each for some kinds of operators, and torchvision's."""

import torch
from torch import nn

F = nn.functional


class Convolutions(nn.Module):
    """Each kind of convolution, with sizes that are no multiples of four."""

    def __init__(self):
        super().__init__()
        self.plain, self.norm = nn.Conv2d(5, 6, 3, (2, 1), (1, 2)), nn.BatchNorm2d(6)
        self.depthwise, self.point = nn.Conv2d(6, 6, 5, 1, 2, groups=6), nn.Conv2d(6, 12, 1, bias=False)
        self.grouped, self.dilated = nn.Conv2d(12, 9, 3, groups=3), nn.Conv2d(9, 7, 3, padding=2, dilation=2)
        self.up, self.grouped_up = nn.ConvTranspose2d(7, 6, 3, 2, 1, 1), nn.ConvTranspose2d(6, 4, 4, 2, 1, groups=2)
        self.line = nn.Conv1d(3, 5, 3, 2, 1)

    def forward(self, x, line):
        x = F.relu(self.norm(self.plain(x)))
        x = F.relu6(self.point(F.hardtanh(self.depthwise(x), -0.5, 0.7)))
        x = F.leaky_relu(self.dilated(F.gelu(self.grouped(x))), 0.1)
        return self.grouped_up(torch.sigmoid(self.up(x))), torch.tanh(self.line(line))


class Pools(nn.Module):
    def forward(self, x):
        most, where = F.max_pool2d(x, 2, return_indices=True)
        pools = F.max_pool2d(x, 3, 2, 1, ceil_mode=True), F.avg_pool2d(x, 3, 2, 1)
        means = F.avg_pool2d(x, 2, count_include_pad=False), F.adaptive_avg_pool2d(x, 1)
        return most, where, *pools, *means, F.adaptive_avg_pool2d(x[..., :12, :12], 3)


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.batch, self.group = nn.BatchNorm2d(6), nn.GroupNorm(3, 6)
        self.layer, self.rms = nn.LayerNorm((6, 7)), nn.RMSNorm(7, eps=1e-5)
        for module in self.modules():
            if isinstance(getattr(module, "weight", None), nn.Parameter):
                nn.init.uniform_(module.weight, 0.5, 1.5)

    def forward(self, x):
        return self.batch(x), self.group(x), self.layer(x.transpose(1, 2)), self.rms(x), F.normalize(x, dim=1)


class Words(nn.Module):
    """A block of a transformer."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.qkv = nn.Embedding(13, 24), nn.LayerNorm(24), nn.Linear(24, 72)
        self.out, self.more, self.less = nn.Linear(24, 24), nn.Linear(24, 36, bias=False), nn.Linear(18, 5)

    def forward(self, i):
        x = self.embed(i)
        n, length, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(n, length, 3, 3, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, length, 24)
        a, b = F.gelu(self.more(x + self.out(y)), approximate="tanh").chunk(2, -1)
        return F.log_softmax(self.less(a * F.silu(b)), -1), torch.softmax(torch.bmm(a, b.transpose(1, 2)), 1)


class Moves(nn.Module):
    def forward(self, x, i):
        a, b, c = x.split([2, 1, 3], 1)
        joined = torch.cat([c, a.flip(-1), b.expand(-1, 2, -1, -1)], 1)
        picked = (
            x[:, 1:, ::2, -3:],
            x.select(2, -1),
            x.index_select(3, i[0]),
            x.gather(1, i[None, None].expand(2, 1, 2, 3)),
        )
        shaped = x.permute(0, 2, 3, 1).reshape(2, -1, 6), x.flatten(1).unsqueeze(1), x[:, :1].squeeze(1).transpose(0, 2)
        return (
            joined,
            *picked,
            *shaped,
            F.pad(x, (1, 2, 0, 3), value=0.5),
            x.repeat(1, 2, 1, 1),
            torch.stack([a, a + 1]),
        )


class Elements(nn.Module):
    def forward(self, x, y):
        positive = x.abs() + 0.5
        one = x.exp(), positive.sqrt(), positive.rsqrt(), x.neg(), x.sin(), x.cos(), x.round(), positive.log()
        more = F.hardswish(x), F.hardsigmoid(x), F.silu(x), F.mish(x), F.elu(x), F.softplus(x), x**2, positive**1.5
        two = x + y, x - 2 * y, x * y, x / (y.abs() + 1), torch.minimum(x, y), torch.maximum(x, y), positive.pow(y)
        asked = (
            x > y,
            x <= 0.25,
            torch.where(x >= y, x, y),
            (x > 0) & (y > 0),
            ~(x > 0),
            x.clamp(-0.5, 0.7),
            x.clamp(min=0),
        )
        return (*one, *more, *two, *asked)


class Sums(nn.Module):
    def forward(self, x):
        sums = x.mean((2, 3)), x.mean(-1, keepdim=True), x.sum(1), x.sum((1, 2), keepdim=True), x.amax(-1), x.amin(2)
        return *sums, x.argmax(1), x.argmin(-1, keepdim=True), x.softmax(2), F.log_softmax(x, 1), x.cumsum(1)


class Resized(nn.Module):
    """Between an encoder and a decoder, with shortcuts."""

    def __init__(self):
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 12, 3, 2, 1)
        self.join, self.last = nn.Conv2d(20, 12, 3, 1, 1), nn.Conv2d(3, 3, 1)

    def forward(self, x):
        down = F.relu(self.down(x))
        deep = F.relu(self.deep(down))
        up = F.interpolate(deep, size=down.shape[2:], mode="bilinear", align_corners=False)
        wide = F.pixel_shuffle(F.relu(self.join(torch.cat([up, down], 1))), 2)
        return (
            self.last(wide),
            F.interpolate(deep, scale_factor=2),
            F.interpolate(deep, (9, 5), mode="bilinear", align_corners=True),
        )


class Integers(nn.Module):
    def forward(self, i, mask):
        chosen = torch.where(mask, i, i * 2)
        return i + 3, chosen, i - torch.arange(5), (i == 2) | mask, chosen.to(torch.float32) / 4, torch.full((2, 2), 7)


class Squeezed(nn.Module):
    """A convolution, a gate of squeeze-and-excite, and the operators behind it that no delegate of Vulkan has."""

    def __init__(self):
        super().__init__()
        self.conv, self.less, self.more = nn.Conv2d(3, 10, 3, 1, 1), nn.Conv2d(10, 3, 1), nn.Conv2d(3, 10, 1)

    def forward(self, x):
        y = F.hardswish(self.conv(x))
        y = y * F.hardsigmoid(self.more(F.relu(self.less(F.adaptive_avg_pool2d(y, 1)))))
        return torch.fmod(y.cumsum(1), 2.5).atan(), torch.erf(y).mean((2, 3))


def _random(*shape):
    return torch.randn(*shape)


def _vision(name, *shape):
    import torchvision

    return getattr(torchvision.models, name)(weights=None), (_random(*shape),)


_INTS = torch.tensor([[0, 3, 1, 2, 4], [2, 2, 5, 1, 0]])
NETWORKS = {
    "convolutions": lambda: (Convolutions(), (_random(2, 5, 19, 17), _random(2, 3, 31))),
    "pools": lambda: (Pools(), (_random(2, 5, 17, 13),)),
    "norms": lambda: (Norms(), (_random(2, 6, 6, 7),)),
    "words": lambda: (Words(), (torch.tensor([[1, 5, 3, 9, 0, 12, 7], [2, 2, 10, 4, 7, 1, 1]]),)),
    "moves": lambda: (Moves(), (_random(2, 6, 7, 5), torch.tensor([[0, 3, 1], [2, 0, 4]]))),
    "elements": lambda: (Elements(), (_random(2, 3, 5, 7), _random(3, 1, 7))),
    "sums": lambda: (Sums(), (_random(2, 6, 5, 7),)),
    "resized": lambda: (Resized(), (_random(1, 3, 17, 23),)),
    "integers": lambda: (Integers(), (_INTS, torch.tensor([[True, False, True, True, False]]))),
    "squeezed": lambda: (Squeezed(), (_random(2, 3, 9, 11),)),
    "resnet18": lambda: _vision("resnet18", 1, 3, 64, 64),
    "mobilenet_v2": lambda: _vision("mobilenet_v2", 1, 3, 64, 64),
    "mobilenet_v3_small": lambda: _vision("mobilenet_v3_small", 1, 3, 64, 64),
    "shufflenet_v2": lambda: _vision("shufflenet_v2_x0_5", 1, 3, 64, 64),
    "squeezenet": lambda: _vision("squeezenet1_1", 1, 3, 64, 64),
    "squeezenet_f16": lambda: _vision("squeezenet1_1", 1, 3, 64, 64),
}
