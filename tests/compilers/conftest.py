"""Tests of GPUs' own compilers, which `vkconv compilers install` sets up; `make drivers` does that and runs them."""

import os

import pytest
from required import unavailable

from vkconv.compilers.installed import Installed, installed

# What a developer measured on this machine must not choose the routes under test.
os.environ["VKCONV_MEASURED"] = "off"


@pytest.fixture(scope="session")
def amd64() -> Installed:
    there = installed("amd64")
    if there is None:
        unavailable("vkconv compilers install sets up the compilers")
    assert there is not None
    return there


@pytest.fixture(scope="session")
def arm64() -> Installed:
    """Not for CI: its drivers are emulated, and its versions move from day to day."""
    there = installed("arm64")
    if there is None:
        pytest.skip("vkconv compilers install arm64 sets up the compilers of Mali, V3D and PowerVR")
    return there
