"""TensorFlow Lite (LiteRT) models as graphs. Needs the ``tflite`` package; nothing outside this package imports it."""

from pathlib import Path

from vkconv.core import UsageError
from vkconv.files import read_model_file
from vkconv.graph.ir import Graph

__all__ = ["is_tflite", "load_tflite", "load_tflite_bytes"]

_IDENTIFIER = b"TFL3"


def is_tflite(data: bytes) -> bool:
    """Whether a file that holds these bytes says that it is a TensorFlow Lite model."""
    return data[4:8] == _IDENTIFIER


def load_tflite(path: str | Path) -> Graph:
    """The graph of a ``.tflite`` file: its first subgraph, in floats or quantized to i8 or u8.

    Inputs and outputs are those of the file, with channels last. A tensor of quantized integers goes in and comes out
    as such. Weights of f16, and integers that are weights alone, become f32. ``metadata`` holds ``tflite.source`` and
    ``tflite.description``.

    Raises ModelError for a file that is no whole TensorFlow Lite model, UnsupportedError listing every operator that
    vkconv has no equivalent for, UsageError where the ``tflite`` package is missing.
    """
    path = Path(path)
    return load_tflite_bytes(read_model_file(path), str(path))


def load_tflite_bytes(data: bytes, name: str = "model.tflite") -> Graph:
    """The graph of what a ``.tflite`` file holds, as `load_tflite` gives that of the file; errors call it ``name``."""
    try:
        import tflite  # noqa: F401
    except ImportError:
        raise UsageError(
            f"{name}: reading TensorFlow Lite needs the tflite package, which is not installed; run: "
            "pip install 'vkconv[tflite]'"
        ) from None
    from vkconv.graph.tflite.importer import import_bytes

    return import_bytes(data, name)
