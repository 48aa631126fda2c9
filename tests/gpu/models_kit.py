"""Published networks of rapidocr_onnxruntime, and what they are tried on."""

import importlib.util
from pathlib import Path

import numpy as np

CLASSIFIER = "ch_ppocr_mobile_v2.0_cls_infer.onnx"
RECOGNISER = "ch_PP-OCRv4_rec_infer.onnx"
DETECTOR = "ch_PP-OCRv4_det_infer.onnx"
# The first that has a node which a route takes is the one to force it in.
NETWORKS = {CLASSIFIER: (1, 3, 48, 64), RECOGNISER: (1, 3, 48, 64), DETECTOR: (1, 3, 64, 64)}


def model_path(name):
    """The file in the installed package, found without importing it (its import needs OpenCV)."""
    return Path(importlib.util.find_spec("rapidocr_onnxruntime").origin).parent / "models" / name


def picture(shape, seed=11):
    """Seeded noise in [-1, 1], smooth along the width as strokes are."""
    noise = np.random.default_rng(seed).uniform(-1, 1, shape)
    return ((noise + np.roll(noise, 1, -1) + np.roll(noise, 2, -1)) / 3).astype(np.float32)


def drawn(name, shape):
    """What a network is tried on; a dark page with a bright line for the detector, whose output is 0 where none is."""
    x = picture(shape)
    if name == DETECTOR:
        line = 3 * x[:, :, 24:40, 8:-8]
        x = np.full(shape, -1, np.float32)
        x[:, :, 24:40, 8:-8] = line
    return x
