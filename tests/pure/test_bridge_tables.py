"""The bridge's tables of Vulkan structures, made from a registry: here from one with a bit of everything."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
SPEC = importlib.util.spec_from_file_location("make_tables", NATIVE / "make_tables.py")
make_tables = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(make_tables)


def struct(name, *members, stype=""):
    """A structure as the registry has it; with an sType it can be chained."""
    head = (
        f'<member values="{stype}"><type>VkStructureType</type> <name>sType</name></member>'
        "<member optional='true'><type>void</type>*    <name>pNext</name></member>"
        if stype
        else ""
    )
    return f'<type category="struct" name="{name}">{head}{"".join(members)}</type>'


def member(kind, name, tail="", attributes=""):
    return f"<member {attributes}><type>{kind}</type>   <name>{name}</name>{tail}</member>"


VK_XML = f"""<?xml version="1.0" encoding="UTF-8"?>
<registry>
  <types>
    <type api="vulkan" category="define">// Version of this file
#define <name>VK_HEADER_VERSION</name> 77</type>
    <type api="vulkansc" category="define">#define <name>VK_HEADER_VERSION</name> 11</type>
    <type category="basetype">typedef <type>uint32_t</type> <name>VkBool32</name>;</type>
    <type category="basetype">typedef <type>uint64_t</type> <name>VkDeviceSize</name>;</type>
    <type category="enum" name="VkStructureType"/>
    <type category="enum" name="VkKind"/>
    <type category="enum" name="VkStageFlagBits"/>
    <type category="enum" name="VkWideBits"/>
    <type category="bitmask" requires="VkStageFlagBits">typedef <type>VkFlags</type> <name>VkStageFlags</name>;</type>
    <type category="bitmask" bitvalues="VkWideBits">typedef <type>VkFlags64</type> <name>VkWideFlags2</name>;</type>
    <type category="bitmask">typedef <type>VkFlags</type> <name>VkEmptyFlags</name>;</type>
    <type category="bitmask" name="VkStageFlagsKHR" alias="VkStageFlags"/>
    <type category="enum" name="VkKindKHR" alias="VkKind"/>
    {struct("VkExtent", member("uint32_t", "width"), member("int32_t", "height"))}
    {
    struct(
        "VkEverything",
        "<comment>sizes</comment>",
        member("VkDeviceSize", "bytes", "<comment>in bytes[1]*</comment>"),
        member("size_t", "alignment", attributes='limittype="min"'),
        member("float", "range", "[2]"),
        member("uint32_t", "counts", "[<enum>VK_COUNT</enum>]"),
        member("uint8_t", "uuid", "[<enum>VK_UUID_SIZE</enum>]"),
        member("char", "name", "[<enum>VK_NAME_SIZE</enum>]"),
        member("VkBool32", "works"),
        member("VkKindKHR", "kind"),
        member("VkStageFlagsKHR", "stages"),
        member("VkWideFlags2", "wide"),
        member("VkEmptyFlags", "reserved"),
        member("VkExtent", "extent"),
        member("uint32_t", "sc", attributes='api="vulkansc"'),
        stype="VK_STRUCTURE_TYPE_EVERYTHING",
    )
}
    {struct("VkBaseFeatures", member("VkBool32", "robust"), member("VkBool32", "wideInt"))}
    {struct("VkOldFeatures", member("VkBool32", "old"), stype="VK_STRUCTURE_TYPE_OLD")}
    <type category="struct" name="VkOldFeaturesKHR" alias="VkOldFeatures"/>
    <type category="struct" name="VkOldFeaturesEXT" alias="VkOldFeaturesKHR"/>
    {struct("VkFloatFeaturesEXT", member("VkBool32", "floats"), stype="VK_STRUCTURE_TYPE_FLOAT")}
    {
    struct(
        "VkFloat2FeaturesEXT",
        member("VkBool32", "halves"),
        member("VkBool32", "imageHalves"),
        stype="VK_STRUCTURE_TYPE_FLOAT_2",
    )
}
    {struct("VkTogetherFeatures", member("VkBool32", "both"), stype="VK_STRUCTURE_TYPE_TOGETHER")}
    {struct("VkListed", member("uint32_t", "count"), "<member><type>VkKind</type>* <name>pKinds</name></member>")}
    {struct("VkKinds", member("VkKind", "kinds", "[3]"))}
  </types>
  <enums name="API Constants"><enum value="(~0U)" name="VK_NONE"/></enums>
  <enums name="VkKind" type="enum">
    <enum value="1" name="VK_KIND_A" comment="first"/>
    <enum value="0x10" name="VK_KIND_B"/>
    <enum name="VK_KIND_A_OLD" alias="VK_KIND_A"/>
    <enum value="2" name="VK_KIND_SC" api="vulkansc"/>
  </enums>
  <enums name="VkStageFlagBits" type="bitmask">
    <enum bitpos="5" name="VK_STAGE_COMPUTE_BIT"/>
    <enum bitpos="0" name="VK_STAGE_VERTEX_BIT"/>
    <enum value="0x7FFFFFFF" name="VK_STAGE_ALL"/>
    <enum value="0" name="VK_STAGE_NONE"/>
  </enums>
  <enums name="VkWideBits" type="bitmask"><enum bitpos="40" name="VK_WIDE_BIT_2"/></enums>
  <enums name="VkResult" type="enum"><enum value="0" name="VK_SUCCESS"/></enums>
  <feature api="vulkan,vulkansc" name="VK_VERSION_1_0" number="1.0">
    <require><type name="VkBaseFeatures"/></require>
  </feature>
  <feature api="vulkan" name="VK_VERSION_1_2" number="1.2">
    <require>
      <type name="VkOldFeatures"/><type name="VkEverything"/>
      <enum extends="VkResult" extnumber="10" offset="1" dir="-" name="VK_ERROR_LATE"/>
    </require>
  </feature>
  <feature api="vulkan" name="VK_VERSION_1_3" number="1.3"><require><type name="VkEverything"/></require></feature>
  <feature api="vulkansc" name="VKSC_VERSION_1_0" number="1.0"><require><type name="VkEverything"/></require></feature>
  <extensions>
    <extension name="VK_KHR_everything_query" number="2" type="instance" supported="vulkan">
      <require><type name="VkEverything"/></require>
    </extension>
    <extension name="VK_KHR_old" number="3" type="device" supported="vulkan,vulkansc">
      <require>
        <type name="VkOldFeaturesKHR"/>
        <enum extends="VkKind" offset="7" name="VK_KIND_C_KHR"/>
        <enum extends="VkStageFlagBits" bitpos="9" name="VK_STAGE_LATE_BIT_KHR"/>
      </require>
    </extension>
    <extension name="VK_EXT_extension_4" number="4" type="device" supported="disabled">
      <require><enum extends="VkStageFlagBits" bitpos="8" name="VK_STAGE_RESERVED_8_BIT"/></require>
    </extension>
    <extension name="VK_EXT_float2" number="6" type="device" supported="vulkan"
               depends="(VK_KHR_query,VK_VERSION_1_1)+VK_EXT_float,VK_KHR_old">
      <require><type name="VkFloat2FeaturesEXT"/></require>
      <require depends="VK_KHR_old"><type name="VkTogetherFeatures"/></require>
    </extension>
    <extension name="VK_EXT_float" number="5" type="device" supported="vulkan">
      <require><type name="VkFloatFeaturesEXT"/></require>
    </extension>
  </extensions>
</registry>
"""
NEWER_XML = f"""<registry>
  <types>
    {struct("VkExtent", member("uint64_t", "other"))}
    {struct("VkNewPropertiesKHR", member("VkScopeKHR", "scope"), member("uint32_t", "sizes", "[4]"), stype="VK_NEW")}
  </types>
  <enums name="VkScopeKHR" type="enum"><enum value="3" name="VK_SCOPE_SUBGROUP_KHR"/></enums>
  <enums name="VkStageFlagBits" type="bitmask"><enum bitpos="9" name="VK_STAGE_LATE_BIT"/></enums>
  <extensions>
    <extension name="VK_KHR_new" number="507" type="device" supported="vulkan">
      <require>
        <enum offset="2" extends="VkStructureType" name="VK_NEW"/>
        <type name="VkNewPropertiesKHR"/>
      </require>
    </extension>
  </extensions>
</registry>
"""
FEATURES = ("VkOldFeaturesEXT", "VkFloatFeaturesEXT", "VkFloat2FeaturesEXT")


@pytest.fixture
def registry(tmp_path, monkeypatch):
    monkeypatch.setattr(make_tables, "FEATURES", FEATURES)
    monkeypatch.setattr(make_tables, "LEFT_OFF", frozenset({"imageHalves"}))
    monkeypatch.setattr(make_tables, "BASE_FEATURES", "VkBaseFeatures")
    monkeypatch.setattr(make_tables, "BASE_ENABLED", frozenset({"wideInt"}))
    monkeypatch.setattr(make_tables, "PROPERTIES", ("VkEverything", "VkNewPropertiesKHR"))
    monkeypatch.setattr(make_tables, "OTHERS", ("VkExtent",))
    (tmp_path / "vk.xml").write_text(VK_XML)
    (tmp_path / "newer.xml").write_text(NEWER_XML)
    made = make_tables.read_registry(tmp_path / "vk.xml")
    made.add(make_tables.read_registry(tmp_path / "newer.xml"))
    return made


def test_every_kind_of_member_has_its_own_python_form(registry):
    """Fields of comments and of Vulkan SC are left out, and names of types without their aliases."""
    _, source = make_tables.tables(registry)
    start = source.index("py::dict to_dict(const VkEverything& s)")
    assert source[start : source.index("}\n", start)] == (
        "py::dict to_dict(const VkEverything& s) {\n"
        "  py::dict d;\n"
        '  d["bytes"] = s.bytes;\n'
        '  d["alignment"] = s.alignment;\n'
        '  d["range"] = numbers(s.range);\n'
        '  d["counts"] = numbers(s.counts);\n'
        '  d["uuid"] = hex(s.uuid);\n'
        '  d["name"] = text(s.name);\n'
        '  d["works"] = s.works == VK_TRUE;\n'
        '  d["kind"] = enum_name(kKind, s.kind);\n'
        '  d["stages"] = flag_names(kStageFlagBits, s.stages);\n'
        '  d["wide"] = flag_names(kWideBits, s.wide);\n'
        '  d["reserved"] = flag_names({}, s.reserved);\n'
        '  d["extent"] = to_dict(s.extent);\n'
        "  return d;\n"
    )
    assert source.index("to_dict(const VkExtent& s)") < start  # C++ knows what it calls
    assert source.count("to_dict(const VkExtent& s)") == 1


def table(source, name):
    rows = re.search(rf"^const Enumerants {name} = \{{\n(.*?)^\}};", source, re.MULTILINE | re.DOTALL)
    return re.findall(r'\{(\S+), "(\w+)"\}', rows.group(1))


def test_enumerants_have_the_values_of_the_registry(registry):
    """Extensions count theirs from a base of their own. Aliases, Vulkan SC's and those of no use yet are left out."""
    _, source = make_tables.tables(registry)
    assert table(source, "kKind") == [("1", "VK_KIND_A"), ("16", "VK_KIND_B"), ("1000002007", "VK_KIND_C_KHR")]
    assert table(source, "kResult") == [("-1000009001", "VK_ERROR_LATE"), ("0", "VK_SUCCESS")]


def test_flags_are_single_bits_and_newer_names_stand(registry):
    _, source = make_tables.tables(registry)
    assert table(source, "kStageFlagBits") == [
        ("0x1", "VK_STAGE_VERTEX_BIT"),
        ("0x20", "VK_STAGE_COMPUTE_BIT"),
        ("0x200", "VK_STAGE_LATE_BIT"),
    ]
    assert table(source, "kWideBits") == [("0x10000000000", "VK_WIDE_BIT_2")]


def test_a_structure_is_asked_of_the_devices_that_have_it(registry):
    """By the version it became core in, under whichever name an extension had it; not by an instance's extension."""
    assert registry.provider("VkOldFeatures") == ((1, 2), "VK_KHR_old")
    assert registry.provider("VkOldFeaturesEXT") == ((1, 2), "VK_KHR_old")
    assert registry.provider("VkEverything") == ((1, 2), None)
    assert registry.provider("VkFloatFeaturesEXT") == (None, "VK_EXT_float")
    with pytest.raises(make_tables.RegistryError, match="VkTogetherFeatures is in no version of Vulkan"):
        registry.provider("VkTogetherFeatures")  # VK_EXT_float2 alone does not bring it


def test_rows_of_features_name_what_is_enabled_and_what_their_extension_needs(registry):
    """An extension that this one needs counts where it has features of its own and is not core."""
    _, source = make_tables.tables(registry)
    start = source.index("const std::vector<Feature> kBaseFeatures")
    assert source[start : source.index("const std::vector<PropertyStruct>")] == (
        "const std::vector<Feature> kBaseFeatures = {\n"
        '      {"robust", offsetof(VkBaseFeatures, robust), false},\n'
        '      {"wideInt", offsetof(VkBaseFeatures, wideInt), true},\n'
        "};\n\n"
        "const std::vector<FeatureStruct> kFeatureStructs = {\n"
        '    {{"VkOldFeaturesEXT", VK_STRUCTURE_TYPE_OLD,\n'
        '      sizeof(VkOldFeaturesEXT), VK_API_VERSION_1_2, "VK_KHR_old"},\n'
        "     {},\n"
        "     {\n"
        '      {"old", offsetof(VkOldFeaturesEXT, old), true},\n'
        "     }},\n"
        '    {{"VkFloatFeaturesEXT", VK_STRUCTURE_TYPE_FLOAT,\n'
        '      sizeof(VkFloatFeaturesEXT), 0, "VK_EXT_float"},\n'
        "     {},\n"
        "     {\n"
        '      {"floats", offsetof(VkFloatFeaturesEXT, floats), true},\n'
        "     }},\n"
        '    {{"VkFloat2FeaturesEXT", VK_STRUCTURE_TYPE_FLOAT_2,\n'
        '      sizeof(VkFloat2FeaturesEXT), 0, "VK_EXT_float2"},\n'
        '     {"VK_EXT_float"},\n'
        "     {\n"
        '      {"halves", offsetof(VkFloat2FeaturesEXT, halves), true},\n'
        '      {"imageHalves", offsetof(VkFloat2FeaturesEXT, imageHalves), false},\n'
        "     }},\n"
        "};\n\n"
    )


def test_what_the_headers_lack_is_declared_and_nothing_else(registry):
    header, source = make_tables.tables(registry)
    assert "static_assert(VK_HEADER_VERSION == 77," in header
    assert header[header.index("namespace vkconv {") : header.index("extern ")] == (
        "namespace vkconv {\n\n"
        "using VkScopeKHR = int32_t;\n\n"
        "constexpr auto VK_NEW = static_cast<VkStructureType>(1000506002);\n"
        "struct VkNewPropertiesKHR {\n"
        "  VkStructureType sType;\n"
        "  void* pNext;\n"
        "  VkScopeKHR scope;\n"
        "  uint32_t sizes[4];\n"
        "};\n\n"
    )
    assert "other" not in source  # VkExtent is the registry's
    assert '{{"VkNewPropertiesKHR", VK_NEW,\n      sizeof(VkNewPropertiesKHR), 0, "VK_KHR_new"},' in source


@pytest.mark.parametrize(
    ("constant", "value", "message"),
    [
        ("OTHERS", ("VkListed",), r"VkListed has a member of a kind that is not written here: VkKind\* pKinds"),
        ("OTHERS", ("VkKinds",), r"VkKinds has a member of a kind that is not written here: VkKind kinds\[3\]"),
        ("FEATURES", (*FEATURES, "VkNewPropertiesKHR"), "members that are no features: scope, sizes"),
        ("PROPERTIES", ("VkUnheardOf",), "Vulkan headers 77 have no VkUnheardOf"),
        ("LEFT_OFF", frozenset({"imageHalfs"}), "no structure has the features imageHalfs"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(registry, monkeypatch, constant, value, message):
    monkeypatch.setattr(make_tables, constant, value)
    with pytest.raises(make_tables.RegistryError, match=message):
        make_tables.tables(registry)


def test_the_program_writes_both_files_or_says_what_is_wrong(registry, tmp_path, monkeypatch):
    """It runs at build, so its only reader is whoever builds."""
    command = ["make_tables.py", *(str(tmp_path / name) for name in ("vk.xml", "newer.xml", "made"))]
    monkeypatch.setattr(sys, "argv", command)
    make_tables.main()
    written = tuple((tmp_path / "made" / f"vulkan_tables.{kind}").read_text() for kind in ("hpp", "cpp"))
    assert written == make_tables.tables(registry)
    (tmp_path / "vk.xml").write_text("<registry>")
    with pytest.raises(SystemExit, match=r"vk\.xml: no element found"):
        make_tables.main()


def test_newer_structures_have_their_numbers_in_the_registry():
    """These are read by drivers: a wrong number asks for another structure."""
    newer = make_tables.read_registry(NATIVE / "newer.xml")
    numbers = {name: value for value, name in newer.enums["VkStructureType"].items()}
    assert {name: numbers[newer.structure_type(name)] for name in newer.structs} == {
        "VkPhysicalDeviceCooperativeMatrixFeaturesKHR": 1000506000,
        "VkCooperativeMatrixPropertiesKHR": 1000506001,
        "VkPhysicalDeviceCooperativeMatrixPropertiesKHR": 1000506002,
        "VkPhysicalDeviceShaderBfloat16FeaturesKHR": 1000141000,
    }
    assert newer.provider("VkPhysicalDeviceShaderBfloat16FeaturesKHR") == (None, "VK_KHR_shader_bfloat16")
    for name in ("VkPhysicalDeviceCooperativeMatrixFeaturesKHR", "VkPhysicalDeviceCooperativeMatrixPropertiesKHR"):
        assert newer.provider(name) == (None, "VK_KHR_cooperative_matrix")
