"""Writes what the bridge knows of Vulkan's structures, from Vulkan's registry: vulkan_tables.hpp and vulkan_tables.cpp.

    make_tables.py VK_XML NEWER_XML FOLDER

NEWER_XML has the format of vk.xml and declares what an older registry lacks. Where both have a structure, the
registry's stands, which is that of the headers. Where both name a value, NEWER_XML's name stands, so that facts do not
change with the headers. A structure goes in by its name alone: fields, types, sType, the version of Vulkan that it is
core in and the extension that offers it below that version are the registry's.
"""

import dataclasses
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree

# Read whole, enabled where offered. An extension that needs another stands below it.
FEATURES = (
    "VkPhysicalDevice16BitStorageFeatures",
    "VkPhysicalDeviceVariablePointersFeatures",
    "VkPhysicalDevice8BitStorageFeatures",
    "VkPhysicalDeviceShaderFloat16Int8Features",
    "VkPhysicalDeviceShaderAtomicInt64Features",
    "VkPhysicalDeviceShaderSubgroupExtendedTypesFeatures",
    "VkPhysicalDeviceVulkanMemoryModelFeatures",
    "VkPhysicalDeviceTimelineSemaphoreFeatures",
    "VkPhysicalDeviceHostQueryResetFeatures",
    "VkPhysicalDeviceBufferDeviceAddressFeatures",
    "VkPhysicalDeviceScalarBlockLayoutFeatures",
    "VkPhysicalDeviceSubgroupSizeControlFeatures",
    "VkPhysicalDeviceShaderIntegerDotProductFeatures",
    "VkPhysicalDeviceZeroInitializeWorkgroupMemoryFeatures",
    "VkPhysicalDeviceSynchronization2Features",
    "VkPhysicalDeviceMaintenance4Features",
    "VkPhysicalDeviceShaderAtomicFloatFeaturesEXT",
    "VkPhysicalDeviceShaderAtomicFloat2FeaturesEXT",
    "VkPhysicalDeviceWorkgroupMemoryExplicitLayoutFeaturesKHR",
    "VkPhysicalDeviceShaderSubgroupUniformControlFlowFeaturesKHR",
    "VkPhysicalDeviceCooperativeMatrixFeaturesKHR",
    "VkPhysicalDeviceShaderBfloat16FeaturesKHR",
    "VkPhysicalDevicePipelineRobustnessFeaturesEXT",
)
# Their fields that stay off: images and graphics, tools, and checks that make every access slower.
LEFT_OFF = frozenset(
    {
        "storageInputOutput16",
        "bufferDeviceAddressCaptureReplay",
        "bufferDeviceAddressMultiDevice",
        "shaderImageFloat32Atomics",
        "shaderImageFloat32AtomicAdd",
        "shaderImageFloat32AtomicMinMax",
        "sparseImageFloat32Atomics",
        "sparseImageFloat32AtomicAdd",
        "sparseImageFloat32AtomicMinMax",
        "cooperativeMatrixRobustBufferAccess",
    }
)
# Of VkPhysicalDeviceFeatures, which is mostly graphics, only these are enabled.
BASE_FEATURES = "VkPhysicalDeviceFeatures"
BASE_ENABLED = frozenset(
    {
        "shaderUniformBufferArrayDynamicIndexing",
        "shaderStorageBufferArrayDynamicIndexing",
        "shaderFloat64",
        "shaderInt64",
        "shaderInt16",
    }
)
PROPERTIES = (
    "VkPhysicalDeviceIDProperties",
    "VkPhysicalDeviceSubgroupProperties",
    "VkPhysicalDeviceMaintenance3Properties",
    "VkPhysicalDeviceDriverProperties",
    "VkPhysicalDeviceFloatControlsProperties",
    "VkPhysicalDeviceSubgroupSizeControlProperties",
    "VkPhysicalDeviceMaintenance4Properties",
    "VkPhysicalDeviceShaderIntegerDotProductProperties",
    "VkPhysicalDeviceCooperativeMatrixPropertiesKHR",
    "VkPhysicalDeviceExternalMemoryHostPropertiesEXT",
    "VkPhysicalDevicePCIBusInfoPropertiesEXT",
    "VkPhysicalDeviceShaderCorePropertiesAMD",
    "VkPhysicalDeviceShaderCoreProperties2AMD",
    "VkPhysicalDeviceShaderSMBuiltinsPropertiesNV",
    "VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM",
)
# What facts.cpp asks for by calls of its own.
OTHERS = (
    "VkPhysicalDeviceProperties",
    "VkFormatProperties",
    "VkQueueFamilyProperties",
    "VkMemoryHeap",
    "VkMemoryType",
    "VkCooperativeMatrixPropertiesKHR",
)
ENUMS = ("VkResult",)

C_NUMBERS = {f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)} | {"size_t", "float"}


class RegistryError(Exception):
    """The registry lacks what is asked of it, or has it in a form that is not read here."""


@dataclasses.dataclass(frozen=True)
class Member:
    """A member of a structure; ``value`` is the only one it may have, which is how sType is given."""

    name: str
    type: str
    declaration: str
    value: str

    @property
    def is_array(self) -> bool:
        return "[" in self.declaration


@dataclasses.dataclass
class Registry:
    """What is read of vk.xml, by name."""

    header_version: int = 0
    aliases: dict[str, str] = dataclasses.field(default_factory=dict)  # of types
    structs: dict[str, list[Member]] = dataclasses.field(default_factory=dict)
    enums: dict[str, dict[int, str]] = dataclasses.field(default_factory=dict)
    flags: dict[str, str] = dataclasses.field(default_factory=dict)  # of a bitmask type the enum of its bits, or ""
    numbers: set[str] = dataclasses.field(default_factory=lambda: set(C_NUMBERS))
    versions: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)  # of core types
    extensions: dict[str, str] = dataclasses.field(default_factory=dict)  # of types of device extensions
    needs: dict[str, str] = dataclasses.field(default_factory=dict)  # of an extension, as the registry puts it
    missing: set[str] = dataclasses.field(default_factory=set)  # structures and enums that the headers lack

    def add(self, newer: "Registry") -> None:
        """Adds what this registry lacks, and lays the newer names of values over its own."""
        known = {*self.structs, *self.aliases, *self.enums}
        self.missing = {name for name in (*newer.structs, *newer.enums) if name not in known}
        self.structs = newer.structs | self.structs
        self.extensions = newer.extensions | self.extensions
        self.needs = newer.needs | self.needs
        for enum, values in newer.enums.items():
            self.enums[enum] = self.enums.get(enum, {}) | values

    def canonical(self, name: str) -> str:
        while name in self.aliases:
            name = self.aliases[name]
        return name

    def members(self, struct: str) -> list[Member]:
        name = self.canonical(struct)
        if name not in self.structs:
            raise RegistryError(f"Vulkan headers {self.header_version} have no {struct}, and newer.xml has none either")
        return self.structs[name]

    def fields(self, struct: str) -> list[Member]:
        """The members but sType and pNext."""
        return [member for member in self.members(struct) if not member.value and member.name != "pNext"]

    def structure_type(self, struct: str) -> str:
        return next(member.value for member in self.members(struct) if member.value)

    def provider(self, struct: str) -> tuple[tuple[int, int] | None, str | None]:
        """The version of Vulkan that has a structure in its core, and the device extension that has it."""
        wanted = self.canonical(struct)
        same = [name for name in (struct, *self.structs, *self.aliases) if self.canonical(name) == wanted]
        version = min((self.versions[name] for name in same if name in self.versions), default=None)
        extension = next((self.extensions[name] for name in same if name in self.extensions), None)
        if self.members(struct) and version is None and extension is None:
            raise RegistryError(f"{struct} is in no version of Vulkan and in no device extension without a condition")
        return version, extension


# --- reading ----------------------------------------------------------------------------------------------------------


def read_registry(path: Path) -> Registry:
    registry = Registry()
    root = ElementTree.parse(path).getroot()
    for node in _of_vulkan(root.iterfind("types/type")):
        _read_type(registry, node)
    for node in root.iterfind("enums"):
        if node.get("type") in ("enum", "bitmask"):
            _read_values(registry, node.attrib["name"], node.iterfind("enum"))
    for node in _of_vulkan(root.iterfind("feature")):
        major, minor = (int(part) for part in node.attrib["number"].split("."))
        for name in _required_types(node):
            registry.versions[name] = min(registry.versions.get(name, (major, minor)), (major, minor))
        for value in node.iterfind("require/enum[@extends]"):
            _read_values(registry, value.attrib["extends"], [value])
    for node in root.iterfind("extensions/extension"):
        if "vulkan" not in node.get("supported", "").split(","):
            continue
        registry.needs[node.attrib["name"]] = node.get("depends") or node.get("requires") or ""
        if node.get("type") == "device":
            for name in _required_types(node):
                registry.extensions.setdefault(name, node.attrib["name"])
        for value in node.iterfind("require/enum[@extends]"):
            _read_values(registry, value.attrib["extends"], [value], int(node.attrib["number"]))
    return registry


def _of_vulkan(nodes: Iterable[ElementTree.Element]) -> Iterator[ElementTree.Element]:
    """Without what only Vulkan SC has."""
    return (node for node in nodes if node.get("api") != "vulkansc")


def _read_type(registry: Registry, node: ElementTree.Element) -> None:
    name = str(node.get("name") or node.findtext("name"))
    category = node.get("category")
    if alias := node.get("alias"):
        registry.aliases[name] = alias
    elif category == "struct":
        registry.structs[name] = [_member(member) for member in _of_vulkan(node.iterfind("member"))]
    elif category == "enum":
        registry.enums.setdefault(name, {})
    elif category == "bitmask":
        registry.flags[name] = node.get("bitvalues") or node.get("requires") or ""
    elif category == "basetype" and node.findtext("type") in C_NUMBERS:
        registry.numbers.add(name)
    elif name == "VK_HEADER_VERSION":
        registry.header_version = int("".join(node.itertext()).split()[-1])


def _member(node: ElementTree.Element) -> Member:
    for comment in node.findall("comment"):
        node.remove(comment)
    declaration = " ".join("".join(node.itertext()).split())
    return Member(node.findtext("name", ""), node.findtext("type", ""), declaration, node.get("values", ""))


def _required_types(node: ElementTree.Element) -> Iterator[str]:
    """What a version or an extension has in any case: a block can also be bound to another extension."""
    for block in _of_vulkan(node.iterfind("require")):
        if not {"depends", "feature", "extension"}.intersection(block.keys()):
            yield from (item.attrib["name"] for item in block.iterfind("type"))


def _read_values(registry: Registry, enum: str, nodes: Iterable[ElementTree.Element], extension: int = 0) -> None:
    values = registry.enums.setdefault(enum, {})
    for node in _of_vulkan(nodes):
        if (bit := node.get("bitpos")) is not None:
            number = 1 << int(bit)
        elif (value := node.get("value")) is not None:
            number = int(value, 0)
        elif (offset := node.get("offset")) is not None:
            number = 1_000_000_000 + 1000 * (int(node.get("extnumber", extension)) - 1) + int(offset)
        else:
            continue  # an alias
        values.setdefault(-number if node.get("dir") == "-" else number, node.attrib["name"])


# --- writing ----------------------------------------------------------------------------------------------------------


class Writer:
    """The tables as C++. Structures and enums inside of others are found on the way, and come before them."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.structs: dict[str, str] = {}  # each with its to_dict
        self.enums: dict[str, str] = {}
        self.declared: dict[str, str] = {}  # what the headers lack

    def enum(self, name: str) -> str:
        """The name of an enum's table. Of flags it has the single bits."""
        table = "k" + name.removeprefix("Vk")
        if name not in self.enums:
            values = self.registry.enums[name]
            bits = name in self.registry.flags.values()
            rows = [
                f'    {{{hex(value) if bits else value}, "{values[value]}"}},\n'
                for value in sorted(values)
                if not bits or value.bit_count() == 1
            ]
            self.enums[name] = f"const Enumerants {table} = {{\n{''.join(rows)}}};\n"
        return table

    def declare(self, name: str) -> None:
        """What the headers lack of a type, as they would have it."""
        if name not in self.registry.missing or name in self.declared:
            return
        if name in self.registry.enums:
            self.declared[name] = f"using {name} = int32_t;\n"
            return
        members = self.registry.members(name)
        for member in members:
            self.declare(member.type)
        numbers = {text: value for value, text in self.registry.enums["VkStructureType"].items()}
        constants = "".join(
            f"constexpr auto {member.value} = static_cast<VkStructureType>({numbers[member.value]});\n"
            for member in members
            if member.value
        )
        body = "".join(f"  {member.declaration};\n" for member in members)
        self.declared[name] = f"{constants}struct {name} {{\n{body}}};\n"

    def struct(self, name: str) -> None:
        """Writes to_dict of a structure."""
        if name in self.structs:
            return
        self.declare(self.registry.canonical(name))
        lines = [f'  d["{m.name}"] = {self.expression(name, m)};\n' for m in self.registry.fields(name)]
        self.structs[name] = f"py::dict to_dict(const {name}& s) {{\n  py::dict d;\n{''.join(lines)}  return d;\n}}\n"

    def expression(self, struct: str, member: Member) -> str:
        value, kind = f"s.{member.name}", self.registry.canonical(member.type)
        if "*" not in member.declaration:
            if member.is_array and kind in self.registry.numbers:
                return f"{'hex' if kind == 'uint8_t' else 'numbers'}({value})"
            if member.is_array and kind == "char":
                return f"text({value})"
            if not member.is_array and kind == "VkBool32":
                return f"{value} == VK_TRUE"
            if not member.is_array and kind in self.registry.numbers:
                return value
            if not member.is_array and kind in self.registry.enums:
                return f"enum_name({self.enum(kind)}, {value})"
            if not member.is_array and kind in self.registry.flags:
                bits = self.registry.flags[kind]
                return f"flag_names({self.enum(bits) if bits else '{}'}, {value})"
            if not member.is_array and kind in self.registry.structs:
                self.struct(kind)
                return f"to_dict({value})"
        raise RegistryError(f"{struct} has a member of a kind that is not written here: {member.declaration}")

    def row(self, name: str) -> str:
        """What tables of features and of properties share: how a structure is asked for, and of which devices."""
        version, extension = self.registry.provider(name)
        self.declare(self.registry.canonical(name))
        since = "VK_API_VERSION_{}_{}".format(*version) if version else "0"
        by = extension or ""
        return f'    {{{{"{name}", {self.registry.structure_type(name)},\n      sizeof({name}), {since}, "{by}"}},\n'

    def feature_row(self, name: str, needable: set[str]) -> str:
        words = re.findall(r"\w+", self.registry.needs.get(self.registry.provider(name)[1] or "", ""))
        needs = ", ".join(f'"{word}"' for word in words if word in needable)
        return f"{self.row(name)}     {{{needs}}},\n     {{{self.feature_fields(name)}     }}}},\n"

    def feature_fields(self, name: str) -> str:
        fields = self.registry.fields(name)
        if others := [field.name for field in fields if field.type != "VkBool32"]:
            raise RegistryError(f"{name} has members that are no features: {', '.join(others)}")
        on = BASE_ENABLED if name == BASE_FEATURES else {field.name for field in fields} - LEFT_OFF
        rows = (f'"{f.name}", offsetof({name}, {f.name}), {"true" if f.name in on else "false"}' for f in fields)
        return "\n" + "".join(f"      {{{row}}},\n" for row in rows)

    def property_row(self, name: str) -> str:
        self.struct(name)
        return f"{self.row(name)}     as_dict<{name}>}},\n"


def tables(registry: Registry) -> tuple[str, str]:
    """The header and the source."""
    writer = Writer(registry)
    known = {field.name for name in (BASE_FEATURES, *FEATURES) for field in registry.fields(name)}
    if unknown := sorted((LEFT_OFF | BASE_ENABLED) - known):
        raise RegistryError(f"no structure has the features {', '.join(unknown)}")
    providers = map(registry.provider, FEATURES)
    needable = {extension for version, extension in providers if extension and not version}
    base = writer.feature_fields(BASE_FEATURES)
    features = "".join(writer.feature_row(name, needable) for name in FEATURES)
    properties = "".join(writer.property_row(name) for name in PROPERTIES)
    for name in OTHERS:
        writer.struct(name)
    names = "".join(f"extern const Enumerants {writer.enum(name)};\n" for name in ENUMS)
    dicts = "".join(f"py::dict to_dict(const {name}& s);\n" for name in OTHERS)
    version, blank = registry.header_version, "\n"
    made = f"// Made by make_tables.py from the registry of Vulkan headers {version}.\n"
    header = f"""{made}#pragma once

#include "tables.hpp"

static_assert(VK_HEADER_VERSION == {version}, "vk.xml is of Vulkan headers {version}, not of these: set VKCONV_VK_XML");

namespace vkconv {{

{blank.join(writer.declared.values())}
{names}
{dicts}
}}  // namespace vkconv
"""
    source = f"""{made}#include "vulkan_tables.hpp"

#include <cstddef>

namespace vkconv {{

{blank.join(writer.enums.values())}
{blank.join(writer.structs.values())}
template <typename T>
py::dict as_dict(const void* s) {{
  return to_dict(*static_cast<const T*>(s));
}}

const std::vector<Feature> kBaseFeatures = {{{base}}};

const std::vector<FeatureStruct> kFeatureStructs = {{
{features}}};

const std::vector<PropertyStruct> kPropertyStructs = {{
{properties}}};

}}  // namespace vkconv
"""
    return header, source


def main() -> None:
    vk_xml, newer_xml, folder = (Path(argument) for argument in sys.argv[1:])
    try:
        registry = read_registry(vk_xml)
        registry.add(read_registry(newer_xml))
        header, source = tables(registry)
    except (ElementTree.ParseError, RegistryError) as error:
        sys.exit(f"{vk_xml}: {error}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vulkan_tables.hpp").write_text(header)
    (folder / "vulkan_tables.cpp").write_text(source)


if __name__ == "__main__":
    main()
