"""A made-up device for tests that choose routes."""

from vkconv.device import Device


def device(kind="CPU", invocations=256, shared_bytes=16384):
    """A device of a kind with the least that Vulkan 1.1 allows, but for invocations, shared memory and bindings."""
    limits = {"maxComputeWorkGroupCount": [65535] * 3, "maxComputeWorkGroupSize": [invocations, invocations, 64]}
    limits |= {"maxComputeWorkGroupInvocations": invocations, "maxComputeSharedMemorySize": shared_bytes}
    limits |= {"maxPerStageDescriptorStorageBuffers": 4, "maxStorageBufferRange": (1 << 32) - 1}
    limits |= {"minStorageBufferOffsetAlignment": 256}
    properties = {
        "deviceName": "a test device",
        "vendorID": 0x10005,
        "deviceType": f"VK_PHYSICAL_DEVICE_TYPE_{kind}",
        "limits": limits,
    }
    return Device({"properties": {"VkPhysicalDeviceProperties": properties}})
