"""`vkconv.load`: a model on a device, whole or with a fallback for what vkconv does not take."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from vkconv.core import Shape, UsageError, did_you_mean
from vkconv.graph import load_model, model_bytes
from vkconv.graph.ir import Graph
from vkconv.session import Session
from vkconv.session import load as load_settings
from vkconv.staged import StagedSession
from vkconv.staged import load as load_whole

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
    """Load a model on a device: `vkconv.session.load`, which has every setting, in stages where shapes depend on values
    that a run finds out (`vkconv.staged.StagedSession`); or, with ``fallback="onnxruntime"``,
    the regions that vkconv takes there and the rest on the host (`vkconv.delegate.DelegatedSession`, whose ``table()``
    says what runs where and why).

    With a fallback ``shapes`` is the one setting. Raises what these two raise, and UsageError for another setting.
    """
    known = inspect.signature(load_settings).parameters
    for name in settings:
        if name not in known:
            raise UsageError(
                f"load takes no {name!r}{did_you_mean(name, known)}; it takes {', '.join(list(known)[1:])}"
            )
    if fallback is None:
        return load_whole(source, device, **settings)
    from vkconv.backend.runtime import select_device
    from vkconv.delegate import FALLBACKS, DelegatedSession, partition

    others = sorted(settings.keys() - {"shapes"})
    if others:
        raise UsageError(f"with a fallback load takes shapes, not {', '.join(others)}; leave them out, or the fallback")
    if fallback not in FALLBACKS:
        raise UsageError(f"there is no fallback {fallback!r}; vkconv knows {', '.join(FALLBACKS)}")
    if isinstance(source, str | Path):
        model: str | Path | bytes | Graph = source if Path(source).suffix.lower() == ".onnx" else load_model(source)
    else:
        model = source if isinstance(source, Graph) else model_bytes(source)
    index, facts = select_device(device)
    return DelegatedSession(partition(model, facts, settings.get("shapes")), index, fallback=fallback)
