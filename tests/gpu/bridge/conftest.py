"""A device of the bridge, and kernels for it."""

from collections.abc import Iterator

import pytest
from bridge_kit import AFFINE, SPIN, compile_source
from required import unavailable

from vkconv.backend import _bridge


@pytest.fixture(scope="module")
def affine_spirv(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return compile_source(AFFINE, tmp_path_factory.mktemp("spirv"), "affine")


@pytest.fixture(scope="module")
def spin_spirv(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return compile_source(SPIN, tmp_path_factory.mktemp("spirv"), "spin")


@pytest.fixture
def device() -> Iterator[_bridge.Device]:
    if not _bridge.devices():
        unavailable("no Vulkan device: install mesa-vulkan-drivers for lavapipe")
    with _bridge.Device(0) as opened:
        yield opened
