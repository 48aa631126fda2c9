"""`vkconv.load`: a model on a device, whole or with a fallback for what vkconv does not take."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from vkconv.core import Shape, UsageError
from vkconv.graph import load_model, model_bytes
from vkconv.graph.ir import Graph
from vkconv.session import Session
from vkconv.settings import Settings
from vkconv.staged import StagedSession, open_model

if TYPE_CHECKING:
    from vkconv.delegate import DelegatedSession


@overload
def load(
    source: object, device: str | int = "auto", *, fallback: None = None, **settings: Any
) -> Session | StagedSession: ...


@overload
def load(
    source: object, device: str | int = "auto", *, fallback: str, shapes: Mapping[str, Shape] | None = None
) -> "DelegatedSession": ...


def load(
    source: object, device: str | int = "auto", *, fallback: str | None = None, **settings: Any
) -> "Session | StagedSession | DelegatedSession":
    """Load a model on a device.

    ``source`` is what `vkconv.graph.load_model` takes: the path of a model, its bytes, a `Graph`, an
    ``onnx.ModelProto``, torch's ``ExportedProgram`` or ``ONNXProgram``; ``device`` is ``auto``, an index or part of a
    name. ``settings`` are those of `vkconv.settings.Settings`, by name. Where shapes depend on values that a run finds
    out, the model runs in stages (`vkconv.staged.StagedSession`). With ``fallback="onnxruntime"`` the regions that
    vkconv takes run there and the rest on the host (`vkconv.delegate.DelegatedSession`, whose ``table()`` says what
    runs where and why); ``shapes`` is then the one setting.

    Raises ModelError for a file that is no model (UnsupportedError listing all that vkconv lacks), DeviceError for the
    device, RouteError and LimitError for what cannot run there, UsageError for another setting.
    """
    asked = Settings.of(settings)
    if fallback is None:
        return open_model(source, device, asked)
    from vkconv.backend.runtime import select_device
    from vkconv.delegate import FALLBACKS, DelegatedSession, partition

    others = sorted(settings.keys() - {"shapes"})
    if others:
        raise UsageError(f"with a fallback load takes shapes, not {', '.join(others)}; leave them out, or the fallback")
    if not isinstance(fallback, str) or fallback not in FALLBACKS:
        raise UsageError(f"there is no fallback {fallback!r}; vkconv knows {', '.join(FALLBACKS)}")
    if isinstance(source, str | Path):
        model: str | Path | bytes | Graph = source if Path(source).suffix.lower() == ".onnx" else load_model(source)
    else:
        model = source if isinstance(source, Graph) else model_bytes(source)
    index, facts = select_device(device)
    return DelegatedSession(partition(model, facts, asked.shapes), index, fallback=fallback)
