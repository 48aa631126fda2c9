"""A made-up device for tests that choose routes."""

from vkconv.device import Device


def device(kind="CPU", invocations=256):
    """A device of a kind with the smallest limits that Vulkan 1.1 allows, but for the invocations."""
    limits = {"maxComputeWorkGroupCount": [65535] * 3, "maxComputeWorkGroupSize": [invocations, invocations, 64]}
    limits |= {"maxComputeWorkGroupInvocations": invocations, "maxComputeSharedMemorySize": 16384}
    limits |= {"maxPerStageDescriptorStorageBuffers": 4}
    properties = {
        "deviceName": "a test device",
        "vendorID": 0x10005,
        "deviceType": f"VK_PHYSICAL_DEVICE_TYPE_{kind}",
        "limits": limits,
    }
    return Device({"properties": {"VkPhysicalDeviceProperties": properties}})
