"""What `vkconv.load` takes beside a model and a device."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from vkconv.backend.given import checked_count, checked_mapping, flag
from vkconv.core import DType, Shape, UsageError, did_you_mean
from vkconv.device import Device
from vkconv.plan.planner import Options
from vkconv.route import Params

# Plans kept for different input shapes; the least recently used one goes first.
MAX_PLANS = 8
# Runs on their way at a time: one that the device works on, one whose inputs are written, one whose outputs are read.
IN_FLIGHT = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of `vkconv.load`, each a keyword of it.

    ``shapes`` binds symbolic input shapes now instead of at the first run, ``dims`` their named dimensions
    (``{"n": 1}``); ``routes`` forces routes (``{"conv2d": "direct"}`` or ``{"node:NAME": "direct"}``), ``params`` their
    parameters (``{"conv2d:direct_tile": {"columns": 4}}``), both beside those of ``options``. ``max_plans`` bounds the
    plans kept for different input shapes, or values of inputs that steer the graph: the least recently used one goes
    first, also where all together would take more than ``memory_bytes`` (of device and host-visible memory; by default
    the device's heap is the limit of each). ``in_flight`` is how many runs `Session.submit` has on their way at a time.
    ``limits`` is another device whose limits and routes to plan with, by the name of a shipped device file or the path
    of one (``"mali-g57"``). ``dtype`` is what floats are stored in between the inputs and outputs (``"f16"``,
    ``"bf16"``), ``io_dtype`` what those are in that a run takes and gives, in place of the model's types.
    ``bounds`` has the most of each named dimension that grows from run to run (``{"past_sequence_length": 512}``):
    its caches stay on the device (`vkconv.cached.CachedSession`), with as many rows as are needed, doubled up to the
    bound, and one plan serves all lengths in them.
    ``caches`` keeps those there that a TensorScatter writes, which have all their rows from the start.
    ``f64_as_f32`` takes 64-bit floats of an ONNX model for 32-bit ones, its inputs and outputs too.

    Raises UsageError for a value of the wrong type.
    """

    shapes: Mapping[str, Shape] | None = None
    dims: Mapping[str, int] | None = None
    routes: Mapping[str, str] | None = None
    params: Mapping[str, Params] | None = None
    options: Options | None = None
    max_plans: int = MAX_PLANS
    in_flight: int = IN_FLIGHT
    limits: Device | str | Path | None = None
    memory_bytes: int | None = None
    dtype: DType | str | None = None
    io_dtype: DType | str | None = None
    bounds: Mapping[str, int] | None = None
    caches: bool = False
    f64_as_f32: bool = False

    def __post_init__(self) -> None:
        checked_mapping("shapes", self.shapes, "{'x': (1, 3, 224, 224)}")
        checked_mapping("dims", self.dims, "{'n': 1}")
        checked_mapping("routes", self.routes, "{'conv2d': 'direct'}")
        checked_mapping("params", self.params, "{'conv2d': {'local': 64}}")
        checked_mapping("bounds", self.bounds, "{'past_sequence_length': 512}")
        for name, most in (self.bounds or {}).items():
            checked_count(f"the bound of {name!r}", most, "it is a number of rows, at least 1")
        checked_count("max_plans", self.max_plans, "a session keeps at least 1 plan")
        checked_count("in_flight", self.in_flight, "a session has at least 1 run in flight")
        if self.memory_bytes is not None:
            checked_count("memory_bytes", self.memory_bytes, "it is a number of bytes")
        flag("caches", self.caches)
        flag("f64_as_f32", self.f64_as_f32)
        if self.options is not None and not isinstance(self.options, Options):
            raise UsageError(f"options is {self.options!r}; it is a vkconv.Options")
        if self.limits is not None and not isinstance(self.limits, Device | str | Path):
            raise UsageError(f"limits is {self.limits!r}; it is the name of a shipped device file, a path, or a Device")

    @classmethod
    def of(cls, given: Mapping[str, object]) -> Self:
        """Settings by name; UsageError for a name that is none."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                raise UsageError(f"load takes no {name!r}{did_you_mean(name, known)}; it takes {', '.join(known)}")
        return cls(**given)  # type: ignore[arg-type]

    @property
    def all_options(self) -> Options:
        """``options`` with what other settings say of it."""
        options = self.options or Options()
        more = {name: getattr(self, name) for name in ("memory_bytes", "dtype", "io_dtype")}
        return dataclasses.replace(
            options,
            routes={**options.routes, **(self.routes or {})},
            params={**options.params, **(self.params or {})},
            **{name: value for name, value in more.items() if value is not None},
        )
