"""The shipped device files as parameters of tests that plan much for each."""

import pytest

from vkconv.device import load_device, shipped_devices


def one_of_each_driver(*without):
    """Every shipped file but some; those of a driver that another one is of already are left to the long tests."""
    seen, params = set(), []
    for name in shipped_devices():
        if name in without:
            continue
        driver = load_device(name).fact("VkPhysicalDeviceDriverProperties", "driverID")
        params.append(pytest.param(name, marks=[pytest.mark.long] if driver in seen else []))
        seen.add(driver)
    return params
