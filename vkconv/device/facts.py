"""`Device`: what the planner may know of a GPU, in the field names of Vulkan itself.

The facts are a dict in the layout of Vulkan profile files (``properties`` / ``features`` / ``extensions`` by
struct name), so that a live device, a dump of one and a shipped file are the same thing.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from vkconv.core import ModelError, atomic_write, bytes_str, did_you_mean
from vkconv.device.quirks import QUIRKS, Quirk
from vkconv.device.reads import seen, unwatched
from vkconv.device.vendors import DRIVER_VERSION_BITS, VENDORS, VERSION_BITS, unpack_version

Kind = Literal["cpu", "integrated", "discrete", "virtual", "other"]

SCHEMA = "vkconv.device/1"

_KINDS: dict[str, Kind] = {
    "VK_PHYSICAL_DEVICE_TYPE_CPU": "cpu",
    "VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU": "integrated",
    "VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU": "discrete",
    "VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU": "virtual",
}
KIND_NAMES: dict[Kind, str] = {kind: name for name, kind in _KINDS.items()} | {"other": "VK_PHYSICAL_DEVICE_TYPE_OTHER"}
# Whether signed dot products of four bytes in a word are faster than the same by multiplications.
DOT_ACCELERATED = (
    "VkPhysicalDeviceShaderIntegerDotProductProperties",
    "integerDotProduct4x8BitPackedSignedAccelerated",
)
DEVICE_LOCAL = "VK_MEMORY_HEAP_DEVICE_LOCAL_BIT"
LOCAL = "VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT"
HOST_VISIBLE = "VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT"
HOST_COHERENT = "VK_MEMORY_PROPERTY_HOST_COHERENT_BIT"
HOST_CACHED = "VK_MEMORY_PROPERTY_HOST_CACHED_BIT"
# What a plain allocation must not use; native/resources.cpp leaves the same ones out.
_SPECIAL = frozenset(
    f"VK_MEMORY_PROPERTY_{name}"
    for name in ("LAZILY_ALLOCATED_BIT", "PROTECTED_BIT", "DEVICE_COHERENT_BIT_AMD", "DEVICE_UNCACHED_BIT_AMD")
)
_COMPUTE_STAGE = "VK_SHADER_STAGE_COMPUTE_BIT"
# Extra facts worth a line to people: the feature bits that routes ask for.
_SHOWN_FEATURES = (
    ("VkPhysicalDeviceShaderFloat16Int8Features", "shaderFloat16"),
    ("VkPhysicalDevice16BitStorageFeatures", "storageBuffer16BitAccess"),
    ("VkPhysicalDeviceShaderFloat16Int8Features", "shaderInt8"),
    ("VkPhysicalDevice8BitStorageFeatures", "storageBuffer8BitAccess"),
    ("VkPhysicalDeviceSubgroupSizeControlFeatures", "subgroupSizeControl"),
    ("VkPhysicalDeviceShaderAtomicFloatFeaturesEXT", "shaderBufferFloat32AtomicAdd"),
    ("VkPhysicalDeviceCooperativeMatrixFeaturesKHR", "cooperativeMatrix"),
)


@dataclasses.dataclass(frozen=True)
class MemoryType:
    """A memory type: its property flags by their Vulkan names, and the bytes of its heap."""

    flags: frozenset[str]
    heap_bytes: int

    def has(self, *flags: str) -> bool:
        """Whether it has all of these flags, and none that an allocation needs a feature for."""
        return self.flags.issuperset(flags) and not self.flags & _SPECIAL


@dataclasses.dataclass(frozen=True, eq=False)
class Device:
    """Facts of one Vulkan device. ``facts`` is the dict that the bridge or a device file gives. ``own_quirks`` replaces
    the rows that would be found for its driver: those of two devices where one stands for another, none to plan as if
    there were none."""

    facts: Mapping[str, Any]
    own_quirks: tuple[Quirk, ...] | None = None

    @cached_property
    def _properties(self) -> Mapping[str, Any]:
        return self.facts["properties"]["VkPhysicalDeviceProperties"]  # type: ignore[no-any-return]

    @property
    def name(self) -> str:
        return str(self._properties["deviceName"])

    @cached_property
    def vendor(self) -> str:
        """Vendor by PCI id: ``arm``, ``qualcomm``, ``nvidia``, ``amd``, ``intel``, ``mesa``, ... or ``unknown``."""
        return VENDORS.get(int(self._properties["vendorID"]), "unknown")

    @cached_property
    def device_id(self) -> tuple[int, int]:
        """Vendor and device by the ids of PCI, or those that the vendor gives."""
        return int(self._properties["vendorID"]), int(self._properties.get("deviceID", 0))

    @property
    def kind(self) -> Kind:
        """``cpu``, ``integrated``, ``discrete``, ``virtual`` or ``other``, as the driver says."""
        return _KINDS.get(str(self._properties["deviceType"]), "other")

    @property
    def api_version(self) -> str:
        """The Vulkan version the device offers, such as ``1.3.230``."""
        packed = int(self._properties["apiVersion"])
        return f"{packed >> 22 & 0x7F}.{packed >> 12 & 0x3FF}.{packed & 0xFFF}"

    @cached_property
    def driver_version(self) -> tuple[int, ...]:
        """The driver's version as numbers that compare, unpacked the way this driver packs them."""
        bits = DRIVER_VERSION_BITS.get(str(self.fact("VkPhysicalDeviceDriverProperties", "driverID")), VERSION_BITS)
        return unpack_version(int(self._properties["driverVersion"]), bits)

    @property
    def driver(self) -> str:
        """The driver's own name and version text (``llvmpipe Mesa 22.3.6 (LLVM 15.0.6)``), or its numbers."""
        struct = "VkPhysicalDeviceDriverProperties"
        parts = [str(self._fact(struct, field) or "") for field in ("driverName", "driverInfo")]
        return " ".join(filter(None, parts)) or ".".join(map(str, self.driver_version))

    @property
    def key(self) -> str:
        """File-safe identity of device and driver: what was compiled or measured under one key may not be right
        under another."""
        p = self._properties
        uuid = str(p.get("pipelineCacheUUID", "nouuid"))
        # Some drivers keep both their version number and the UUID across releases; their text does change.
        text = hashlib.sha256(f"{self.name}\n{self.driver}".encode()).hexdigest()[:8]
        return f"{int(p['vendorID']):04x}-{int(p['deviceID']):04x}-{int(p['driverVersion']):08x}-{uuid}-{text}"

    def limit(self, name: str) -> int:
        """A scalar of VkPhysicalDeviceLimits by its Vulkan name, as an int. ModelError when it is not known."""
        return int(seen("limit", Device._limit, self, name))

    def limits(self, name: str) -> tuple[int, ...]:
        """An array of VkPhysicalDeviceLimits by its Vulkan name, such as maxComputeWorkGroupCount."""
        return tuple(int(v) for v in seen("limit", Device._limit, self, name))

    def known_limit(self, name: str) -> int | None:
        """A scalar of VkPhysicalDeviceLimits as an int, None where the facts do not have it."""
        value = seen("limit", Device._known_limit, self, name)
        return None if value is None else int(value)

    def _known_limit(self, name: str) -> Any:
        return self._properties["limits"].get(name)

    def _limit(self, name: str) -> Any:
        limits = self._properties["limits"]
        if name not in limits:
            raise ModelError(f"the facts of {self.name} have no limit {name!r}{did_you_mean(name, limits)}")
        return limits[name]

    def assumes(self, name: str) -> bool:
        """Whether a limit or fact, by its Vulkan name, is no more than an assumption of the device's file."""
        return any(path.rpartition(".")[2] == name for path in self.facts.get("assumed", ()))

    @property
    def timestamp_period_ns(self) -> float:
        """Nanoseconds of one timestamp tick."""
        return float(self._limit("timestampPeriod"))

    def fact(self, struct: str, name: str) -> Any:
        """A property outside VkPhysicalDeviceProperties, or None where the device does not report it."""
        return seen("property", Device._fact, self, struct, name)

    def _fact(self, struct: str, name: str) -> Any:
        return self.facts["properties"].get(struct, {}).get(name)

    def feature(self, struct: str, name: str) -> bool:
        """A feature bit, for example ``("VkPhysicalDeviceShaderFloat16Int8Features", "shaderFloat16")``."""
        return seen("feature", Device._feature, self, struct, name)

    def _feature(self, struct: str, name: str) -> bool:
        return bool(self.facts.get("features", {}).get(struct, {}).get(name, False))

    def has(self, extension: str) -> bool:
        """True when the device offers the extension, such as ``VK_KHR_cooperative_matrix``, and no quirk spoils it."""
        return seen("extension", Device._has, self, extension)

    def _has(self, extension: str) -> bool:
        return extension in self.facts.get("extensions", {}) and not any(extension in q.off for q in self._quirks)

    @property
    def cooperative_matrices(self) -> Sequence[Mapping[str, Any]]:
        """The rows of VkCooperativeMatrixPropertiesKHR."""
        return seen("cooperativeMatrices", Device._cooperative_matrices, self)

    def _cooperative_matrices(self) -> Sequence[Mapping[str, Any]]:
        return self.facts.get("cooperativeMatrices", ())  # type: ignore[no-any-return]

    def texel_features(self, name: str) -> Sequence[str] | None:
        """What images of a VkFormat may do with optimal tiling, None where the facts do not say."""
        return seen("format", Device._texel_features, self, name)

    def _texel_features(self, name: str) -> Sequence[str] | None:
        offered = self.facts.get("formats", {}).get(name, {}).get("VkFormatProperties", {})
        return offered.get("optimalTilingFeatures")  # type: ignore[no-any-return]

    @property
    def subgroup_size(self) -> int:
        """Invocations of a subgroup, as the driver says by default; 1 where it says nothing."""
        return int(self.fact("VkPhysicalDeviceSubgroupProperties", "subgroupSize") or 1)

    @property
    def subgroup_sizes(self) -> tuple[int, int]:
        """Least and largest subgroup size that a compute pipeline may require; both `subgroup_size` without that."""
        struct = "VkPhysicalDeviceSubgroupSizeControlProperties"
        stages = self.fact(struct, "requiredSubgroupSizeStages") or ()
        if _COMPUTE_STAGE not in stages or not self.feature(
            "VkPhysicalDeviceSubgroupSizeControlFeatures", "subgroupSizeControl"
        ):
            return self.subgroup_size, self.subgroup_size
        least, most = (self.fact(struct, name) or self.subgroup_size for name in ("minSubgroupSize", "maxSubgroupSize"))
        return int(least), int(most)

    def required_subgroup_size(self, by_subgroups: bool) -> int:
        """The subgroup size that a pipeline has to ask for: `subgroup_size`, where its invocations meet in subgroups
        and the driver may take another one; else 0, and the driver may."""
        least, most = self.subgroup_sizes
        return self.subgroup_size if by_subgroups and least < most else 0

    @cached_property
    def most_sized_invocations(self) -> int | None:
        """Invocations of a workgroup at most whose pipeline asks for `subgroup_size`, no fewer than the 128 that Vulkan
        guarantees; None where none has to ask, or the device does not say."""
        count = self.fact("VkPhysicalDeviceSubgroupSizeControlProperties", "maxComputeWorkgroupSubgroups")
        return max(128, int(count) * self.subgroup_size) if count and self.required_subgroup_size(True) else None

    @cached_property
    def subgroup_operations(self) -> frozenset[str]:
        """What compute shaders may do across a subgroup: ``basic``, ``vote``, ``arithmetic``, ``ballot``,
        ``shuffle``, ``shuffle_relative``, ``clustered``, ``quad``."""
        struct = "VkPhysicalDeviceSubgroupProperties"
        if _COMPUTE_STAGE not in (self.fact(struct, "supportedStages") or ()):
            return frozenset()
        names = self.fact(struct, "supportedOperations") or ()
        # Vendor operations end in their vendor's tag and are not GL_KHR_shader_subgroup_*: leave them out.
        return frozenset(
            n.removeprefix("VK_SUBGROUP_FEATURE_").removesuffix("_BIT").lower() for n in names if n.endswith("_BIT")
        )

    @property
    def quirks(self) -> tuple[Quirk, ...]:
        """The rows of `QUIRKS` that apply to this driver."""
        return seen("quirks", Device._its_quirks, self)

    def _its_quirks(self) -> tuple[Quirk, ...]:
        return self._quirks

    @cached_property
    def _quirks(self) -> tuple[Quirk, ...]:
        if self.own_quirks is not None:
            return self.own_quirks
        with unwatched():
            return tuple(quirk for quirk in QUIRKS if quirk.applies(self))

    def avoids(self, op: str, route: str, call: Any) -> str:
        """Why a quirk of the driver speaks against a route for a call; empty where none does."""
        for quirk in self.quirks:
            for avoid in quirk.avoid:
                if (avoid.op, avoid.route) == (op, route) and avoid.test(call):
                    return f"no quirk {quirk.id} ({avoid.when})"
        return ""

    @cached_property
    def max_loop_iterations(self) -> int | None:
        """Iterations, of all loops together, after which an invocation of this driver gives up; None: never."""
        return min((q.limits["loop iterations"] for q in self.quirks if "loop iterations" in q.limits), default=None)

    @cached_property
    def heap_bytes(self) -> int:
        """Size of the largest heap that is the device's own memory (DEVICE_LOCAL); ModelError where none is known."""
        sizes = [int(heap["size"]) for heap in self._heaps if DEVICE_LOCAL in heap["flags"]]
        if not sizes:
            raise ModelError(f"the facts of {self.name} have no DEVICE_LOCAL heap in memory.memoryHeaps")
        return max(sizes)

    @property
    def unified_memory(self) -> bool:
        """True where the device computes in the host's memory: a CPU, an integrated GPU, or only own heaps."""
        local = [DEVICE_LOCAL in heap["flags"] for heap in self._heaps]
        return self.kind in ("cpu", "integrated") or (bool(local) and all(local))

    @cached_property
    def memory_types(self) -> tuple["MemoryType", ...]:
        """The memory types in the driver's order. Where the facts have none and every heap is the device's own, the one
        that Vulkan guarantees: host-visible and coherent, and device-local since its heap is."""
        heaps = self._heaps
        given = self.facts.get("memory", {}).get("memoryTypes")
        if given:
            return tuple(
                MemoryType(frozenset(t["propertyFlags"]), int(heaps[t["heapIndex"]]["size"]))
                for t in given
                if t["heapIndex"] < len(heaps)
            )
        if heaps and all(DEVICE_LOCAL in heap["flags"] for heap in heaps):
            return (MemoryType(frozenset((LOCAL, HOST_VISIBLE, HOST_COHERENT)), self.heap_bytes),)
        return ()

    @property
    def _heaps(self) -> list[Mapping[str, Any]]:
        return list(self.facts.get("memory", {}).get("memoryHeaps", ()))

    def describe(self) -> list[tuple[str, str]]:
        """The facts that matter here, as (field, value) for people."""
        low, high = self.subgroup_sizes
        p = self._properties
        return [
            ("name", self.name),
            ("kind", self.kind),
            ("vendor", f"{self.vendor} (0x{int(p['vendorID']):04X}, device 0x{int(p['deviceID']):04X})"),
            ("driver", self.driver),
            ("Vulkan", self.api_version),
            ("memory", f"{bytes_str(self.heap_bytes)}{', shared with the host' if self.unified_memory else ''}"),
            ("subgroup", f"{self.subgroup_size}" + (f" (may require {low} to {high})" if low < high else "")),
            ("subgroup operations", ", ".join(sorted(self.subgroup_operations)) or "none"),
            ("invocations per workgroup", str(self.limit("maxComputeWorkGroupInvocations"))),
            ("shared memory", bytes_str(self.limit("maxComputeSharedMemorySize"))),
            ("storage buffer range", bytes_str(self.limit("maxStorageBufferRange"))),
            ("push constants", f"{self.limit('maxPushConstantsSize')} B"),
            ("timestamp tick", f"{self.timestamp_period_ns:g} ns"),
            ("features", ", ".join(name for struct, name in _SHOWN_FEATURES if self.feature(struct, name)) or "none"),
            ("quirks", ", ".join(quirk.id for quirk in self.quirks) or "none"),
            ("cooperative matrices", str(len(self.facts.get("cooperativeMatrices", ())))),
        ]

    def save(self, path: Path) -> None:
        """Write a device file that `load_device` reads back, whole or not at all."""
        text = json.dumps({"schema": SCHEMA, **self.facts}, indent=1, ensure_ascii=False)
        with atomic_write(path) as file:
            file.write(text.encode() + b"\n")
