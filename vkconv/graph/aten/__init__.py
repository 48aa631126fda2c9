"""torch's exported programs as graphs, from the operators of ATen. Needs ``torch``; only the backend of torch.compile
(`vkconv.torch_backend`) imports it beside this package."""

import io
import warnings
from pathlib import Path

from vkconv.core import ModelError, UsageError
from vkconv.files import read_model_file
from vkconv.graph.ir import Graph

__all__ = ["is_exported_program", "load_exported", "load_pt2", "load_pt2_bytes"]


def is_exported_program(source: object) -> bool:
    """Whether this is a ``torch.export.ExportedProgram``, without importing torch."""
    return any(f"{kind.__module__}.{kind.__qualname__}" == _EXPORTED for kind in type(source).__mro__)


_EXPORTED = "torch.export.exported_program.ExportedProgram"


def load_exported(program: object, name: str = "program") -> Graph:
    """The graph of a ``torch.export.ExportedProgram`` in memory; errors call it ``name``.

    Parameters and buffers become constants. Inputs and outputs have the names of the program's signature. Dimensions
    that the program leaves open become names. Raises UnsupportedError listing every operator that vkconv has no
    equivalent for.
    """
    from vkconv.graph.aten.importer import import_program

    return import_program(program, name)


def load_pt2(path: str | Path) -> Graph:
    """The graph of a ``.pt2`` file that ``torch.export.save`` wrote.

    torch reads it, with what that trusts of a file: take such files from those that you would run a program of. Raises
    ModelError for what torch does not read, UsageError where torch is missing.
    """
    return load_pt2_bytes(read_model_file(Path(path)), str(path))


def load_pt2_bytes(data: bytes, name: str = "model.pt2") -> Graph:
    """The graph of what a ``.pt2`` file holds, as `load_pt2` gives that of the file; errors call it ``name``."""
    try:
        import torch
    except ImportError:
        raise UsageError(f"{name}: reading .pt2 needs torch, which is not installed; run: pip install torch") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch, about itself
            program = torch.export.load(io.BytesIO(data))
    except Exception as error:  # torch has no common base for what reading raises
        said = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"{name}: torch {torch.__version__} does not read it ({said}); write it with torch.export.save"
        ) from None
    return load_exported(program, name)
