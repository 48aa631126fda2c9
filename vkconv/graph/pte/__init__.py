"""ExecuTorch's programs as graphs: what its Vulkan delegate and its portable kernels compute. Needs no package."""

from pathlib import Path

from vkconv.files import read_model_file
from vkconv.graph.ir import Graph

__all__ = ["is_pte", "load_pte", "load_pte_bytes"]


def is_pte(data: bytes) -> bool:
    """Whether a file that holds these bytes says that it is an ExecuTorch program, of any version, or a bundled one."""
    return data[4:8] == b"BP08" or (data[4:6] == b"ET" and data[6:8].isdigit())


def load_pte(path: str | Path) -> Graph:
    """The graph of a ``.pte`` file: its method ``forward``, or the only one that there is.

    Inputs are ``input_0`` and so on, outputs ``output_0``: a program has no names for them. Sizes that it leaves open
    are those of the file, the largest that there can be. Floats that a delegate computes in f16 for the program's f32
    (``force_fp16``) are f32 here, its weights what f16 makes of them. ``metadata`` holds ``pte.method``, ``pte.source``
    and ``pte.force_fp16``.

    Raises ModelError for a file that is no whole program, UnsupportedError listing every operator and delegate that
    vkconv has no equivalent for.
    """
    path = Path(path)
    return load_pte_bytes(read_model_file(path), str(path))


def load_pte_bytes(data: bytes, name: str = "model.pte") -> Graph:
    """The graph of what a ``.pte`` file holds, as `load_pte` gives that of the file; errors call it ``name``."""
    from vkconv.graph.pte.importer import import_bytes

    return import_bytes(data, name)
