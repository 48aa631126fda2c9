"""Networks of phones as cases of the peers harness: torchvision's and timm's with seeded random weights.

`run.sh` adds them to the harness's own cases; their ids begin with ``p``. Statistics of BatchNorm are those of one
batch of noise, so that values neither vanish nor grow through the layers. Needs torch, torchvision and timm.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import torch
from cases import CACHE, Case
from networks import _gflop

EXTENT = (1, 3, 224, 224)


def _torchvision(name: str) -> Callable[[], Any]:
    def make() -> Any:
        import torchvision

        return torchvision.models.get_model(name, weights=None)

    return make


def _timm(name: str) -> Callable[[], Any]:
    def make() -> Any:
        import timm

        return timm.create_model(name, pretrained=False, exportable=True)

    return make


NETWORKS = {
    "p1": ("mobilenet_v2", _torchvision("mobilenet_v2")),
    "p2": ("mobilenet_v3_large", _torchvision("mobilenet_v3_large")),
    "p3": ("mobilenet_v3_small", _torchvision("mobilenet_v3_small")),
    "p4": ("efficientnet_lite0", _timm("efficientnet_lite0")),
    "p5": ("efficientnet_lite2", _timm("efficientnet_lite2")),
    "p6": ("mnasnet1_0", _torchvision("mnasnet1_0")),
}


def _write(make: Callable[[], Any], path: Path) -> None:
    torch.manual_seed(7)
    model = make()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
    with torch.no_grad():
        model.train()(torch.randn(8, *EXTENT[1:]))
    made = path.with_suffix(f".{os.getpid()}")
    names = {"input_names": ["x"], "output_names": ["y"]}
    torch.onnx.export(model.eval(), torch.randn(EXTENT), str(made), opset_version=13, dynamo=False, **names)
    onnx.save(onnx.shape_inference.infer_shapes(onnx.load(made)), made)
    made.replace(path)


def cases() -> list[Case]:
    """The networks, each written once to the harness's cache."""
    cache = Path(CACHE)
    cache.mkdir(parents=True, exist_ok=True)
    found = []
    for number, (name, make) in NETWORKS.items():
        path = cache / f"{number}.onnx"
        if not path.exists():
            _write(make, path)
        case = Case(number, name, "network", {"x": EXTENT}, gflop=_gflop(str(path)), path=str(path), tol=5e-3)
        found.append(case)
    return found
