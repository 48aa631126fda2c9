"""PCI vendor ids to names. Source: the PCI-SIG list and the Vulkan registry's VkVendorId."""

VENDORS: dict[int, str] = {
    0x1002: "amd",
    0x1010: "imagination",
    0x106B: "apple",
    0x10DE: "nvidia",
    0x13B5: "arm",
    0x144D: "samsung",
    0x14E4: "broadcom",
    0x1AE0: "google",
    0x5143: "qualcomm",
    0x8086: "intel",
    0x10005: "mesa",
}
