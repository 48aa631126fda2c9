"""How many compute units a device has, and how many workgroups it may hold at a time."""

from vkconv.device import Device

# Where a driver does not tell, by kind of device: compute units, and invocations and workgroups that one holds at a
# time. An estimate; registers are not known before a shader is compiled. A CPU driver runs one workgroup on a core at a
# time.
_UNITS = {"cpu": 4, "integrated": 8}
_UNITS_ELSE, _RESIDENT = 32, 1024
_MOST_WORKGROUPS, _MOST_WORKGROUPS_ELSE = {"cpu": 1}, 16


def compute_units(device: Device) -> int:
    """Compute units, as the driver tells them (NVIDIA: streaming multiprocessors, AMD: compute units, ARM: cores), or
    an assumption for the kind of device."""
    for struct, field in (
        ("VkPhysicalDeviceShaderSMBuiltinsPropertiesNV", "shaderSMCount"),
        ("VkPhysicalDeviceShaderCoreProperties2AMD", "activeComputeUnitCount"),
        ("VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM", "shaderCoreCount"),
    ):
        units = device.fact(struct, field)
        if units:
            return int(units)
    return _UNITS.get(device.kind, _UNITS_ELSE)


def occupancy_estimate(device: Device, local: int, shared_bytes: int) -> int:
    """An estimate of the workgroups that the device holds at a time. Vulkan does not tell occupancy: this knows of
    invocations and shared memory, not of registers."""
    by_shared = device.limit("maxComputeSharedMemorySize") // max(shared_bytes, 1)
    most = _MOST_WORKGROUPS.get(device.kind, _MOST_WORKGROUPS_ELSE)
    return compute_units(device) * max(1, min(_RESIDENT // local, by_shared, most))
