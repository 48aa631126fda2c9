"""The scripts of tools/ as modules."""

import importlib.util
import sys
from pathlib import Path

_TOOLS = Path(__file__).parents[2] / "tools"


def load_tool(name):
    """The module of a script: ``regret``, ``fit/thresholds``."""
    path = _TOOLS / f"{name}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
