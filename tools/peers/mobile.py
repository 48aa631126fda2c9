"""Networks of phones as cases of the peers harness: torchvision's and timm's with seeded random weights.

`run.sh` adds them to the harness's own cases; their ids begin with ``p``. Statistics of BatchNorm are those of one
batch of noise, so that values neither vanish nor grow through the layers. Needs torch, torchvision and timm.
"""

import os
from pathlib import Path

import onnx
import timm
import torch
import torchvision
from cases import CACHE, Case
from networks import _gflop

EXTENT = (1, 3, 224, 224)


NETWORKS = {
    "p1": (torchvision.models.get_model, "mobilenet_v2"),
    "p2": (torchvision.models.get_model, "mobilenet_v3_large"),
    "p3": (torchvision.models.get_model, "mobilenet_v3_small"),
    "p4": (timm.create_model, "efficientnet_lite0"),
    "p5": (timm.create_model, "efficientnet_lite2"),
    "p6": (torchvision.models.get_model, "mnasnet1_0"),
}


def _write(model: torch.nn.Module, path: Path) -> None:
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
    for number, (make, name) in NETWORKS.items():
        path = cache / f"{number}.onnx"
        if not path.exists():
            torch.manual_seed(7)
            _write(make(name), path)
        case = Case(number, name, "network", {"x": EXTENT}, gflop=_gflop(str(path)), path=str(path), tol=5e-3)
        found.append(case)
    return found
