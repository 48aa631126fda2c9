"""Who made a device and its driver: PCI vendor ids to names, and how drivers pack their version numbers.

Sources: the PCI-SIG vendor list, and for ids above 0xFFFF the Vulkan registry's VkVendorId. MoltenVK reports
Apple's id, SwiftShader Google's, lavapipe Mesa's.
"""

VENDORS: dict[int, str] = {
    0x1002: "amd",
    0x1010: "imagination",
    0x106B: "apple",
    0x10DE: "nvidia",
    0x13B5: "arm",
    0x144D: "samsung",
    0x14E4: "broadcom",
    0x19E5: "huawei",
    0x1AE0: "google",
    0x1ED5: "moore-threads",
    0x5143: "qualcomm",
    0x8086: "intel",
    0x10001: "vivante",
    0x10002: "verisilicon",
    0x10005: "mesa",
    0x10006: "pocl",
}

# Widths of the fields of driverVersion, from the top bit. Most drivers pack it like a Vulkan API version.
VERSION_BITS = (10, 10, 12)
DRIVER_VERSION_BITS: dict[str, tuple[int, ...]] = {"VK_DRIVER_ID_NVIDIA_PROPRIETARY": (10, 8, 8, 6)}


def unpack_version(value: int, bits: tuple[int, ...]) -> tuple[int, ...]:
    """A 32-bit packed version as its fields, trailing zeros after the second dropped."""
    fields = []
    shift = 32
    for width in bits:
        shift -= width
        fields.append(value >> shift & (1 << width) - 1)
    while len(fields) > 2 and fields[-1] == 0:
        fields.pop()
    return tuple(fields)
