"""Draws convolutions of timm's networks at random, so that rules are judged by layers that nobody chose.

    python tools/draw_layers.py --seed 5 [--networks 30] [--layers 52] [--dtype f16] [--known PATH ...] > calls.txt

Needs torch and timm. Networks, input sizes, batches (1 or 16) and layers are drawn by the seed. Of each class (1x1,
depthwise, grouped, k x k, stems of up to four channels) a share of the layers is taken, as `_SHARES` has it. Calls that
stand in the files given by --known, or below the folders, are left out, as are those of another type.
"""

import argparse
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import timm
import torch

# Of 13 layers; networks have far more 1x1 than stems, which are the ones that rules have got wrong.
_SHARES = {"1x1": 5, "depthwise": 3, "grouped": 1, "k x k": 3, "stem": 1}
_SIZES = range(160, 420, 16)
_BATCHES = (1, 16)
# More than a layer of a mobile network has, and slower to check than it tells. For a short measurement give less:
# references take longer than kernels.
_MOST_PRODUCTS, _MOST_ELEMENTS = 4e10, 5e7


def layers_of(name: str, size: int) -> Iterator[tuple[tuple[int, ...], torch.nn.Conv2d]]:
    """The input shape of each convolution of a network, and the convolution; nothing is computed."""
    with torch.device("meta"):
        network = timm.create_model(name, pretrained=False).eval()
        found: list[tuple[tuple[int, ...], torch.nn.Conv2d]] = []
        for module in network.modules():
            if type(module) is torch.nn.Conv2d:
                module.register_forward_pre_hook(lambda one, given: found.append((tuple(given[0].shape), one)))
        channels = getattr(network, "default_cfg", {}).get("input_size", (3,))[0]
        network(torch.empty(1, channels, size, size))
    yield from found


def call_of(
    shape: tuple[int, ...], conv: torch.nn.Conv2d, batch: int, dtype: str, products: float, elements: float
) -> tuple[str, str] | None:
    """The class of a layer and its call string, as `vkconv.ops.core.calls.format_call` writes it; None for what has
    more products or elements, or pads in another way."""
    (_, c_in, h, w), (kh, kw), (sh, sw), (dh, dw) = shape, conv.kernel_size, conv.stride, conv.dilation
    if isinstance(conv.padding, str) or conv.padding_mode != "zeros":
        return None
    ph, pw = conv.padding
    oh, ow = ((e + 2 * p - d * (k - 1) - 1) // s + 1 for e, p, d, k, s in ((h, ph, dh, kh, sh), (w, pw, dw, kw, sw)))
    inner = c_in // conv.groups
    outputs = batch * conv.out_channels * oh * ow
    if outputs * inner * kh * kw > products or max(batch * c_in * h * w, outputs) > elements or oh < 1 or ow < 1:
        return None
    words = [f"x={batch}x{c_in}x{h}x{w}", f"w={conv.out_channels}x{inner}x{kh}x{kw}"]
    words += [f"s={sh}x{sw}"] if (sh, sw) != (1, 1) else []
    words += [f"p={ph}x{pw}x{ph}x{pw}"] if (ph, pw) != (0, 0) else []
    words += [f"d={dh}x{dw}"] if (dh, dw) != (1, 1) else []
    words += [f"g={conv.groups}"] if conv.groups > 1 else []
    kind = "depthwise" if inner == 1 and conv.groups > 1 else "grouped" if conv.groups > 1 else ""
    kind = kind or ("stem" if c_in <= 4 else "1x1" if kh * kw == 1 else "k x k")
    return kind, f"conv2d:{','.join(words)},dtype={dtype}"


def known_calls(paths: list[Path]) -> set[str]:
    """What calls stand in files, each without its type."""
    files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]
    return {
        found.partition(",dtype=")[0] for file in files for found in re.findall(r"conv2d:[\w=x,]+", file.read_text())
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--networks", type=int, default=30)
    parser.add_argument("--layers", type=int, default=52)
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--products", type=float, default=_MOST_PRODUCTS, help="of a layer at most")
    parser.add_argument("--elements", type=float, default=_MOST_ELEMENTS, help="of an input or output at most")
    parser.add_argument("--known", type=Path, action="append", default=[])
    args = parser.parse_args()
    drawn = random.Random(args.seed)
    names = timm.list_models()
    drawn.shuffle(names)
    known = known_calls(args.known)
    classes: dict[str, dict[str, str]] = {kind: {} for kind in _SHARES}
    used: list[str] = []
    for name in names:
        if len(used) == args.networks:
            break
        try:
            layers = list(layers_of(name, drawn.choice(_SIZES)))
        except Exception as problem:  # a network that takes no such size, or cannot be made without its numbers
            print(
                f"{name}: {str(problem).splitlines()[0][:80] if str(problem) else type(problem).__name__}",
                file=sys.stderr,
            )
            continue
        if len(layers) < 5:  # no convolution network
            continue
        used.append(name)
        for shape, conv in layers:
            if len(shape) != 4:
                continue
            made = call_of(shape, conv, drawn.choice(_BATCHES), args.dtype, args.products, args.elements)
            if made and made[1].partition(",dtype=")[0] not in known:
                classes[made[0]].setdefault(made[1], name)
    print(f"# {', '.join(used)}")
    for kind, share in _SHARES.items():
        calls = sorted(classes[kind])
        for call in drawn.sample(calls, min(len(calls), round(args.layers * share / sum(_SHARES.values())))):
            print(f"{call}  # {kind}, {classes[kind][call]}")


if __name__ == "__main__":
    main()
