"""GPU tests run on lavapipe under the validation layer with synchronization validation: one report fails the test.

Set VKCONV_TEST_DEVICE to run them on another device, VKCONV_TEST_VALIDATION=0 where the layer is not installed, and
VKCONV_TEST_VALIDATION=gpu to have every access of a shader held against its buffers instead (GPU-assisted validation).
tools/drivers.sh runs them on other implementations of Vulkan; `make drivers` runs those marked `drivers` there.
"""

import os
import signal
import tempfile
from pathlib import Path

import pytest

_LAVAPIPE = Path("/usr/share/vulkan/icd.d/lvp_icd.x86_64.json")
_VALIDATE = os.environ.get("VKCONV_TEST_VALIDATION", "1") != "0"
_WHAT = "GPU_ASSISTED" if os.environ.get("VKCONV_TEST_VALIDATION") == "gpu" else "SYNCHRONIZATION_VALIDATION"
_FOLDER = Path(tempfile.mkdtemp(prefix="vkconv-tests-"))
_LOG = _FOLDER / "validation.log"

# What a developer measured on this machine must not choose the routes under test.
os.environ["VKCONV_MEASURED"] = "off"

# A shell starts jobs in the background with Ctrl-C ignored, and Python leaves it so: tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# All of this must stand before the loader makes its first instance.
if "VKCONV_TEST_DEVICE" not in os.environ and _LAVAPIPE.exists():
    os.environ.setdefault("VK_DRIVER_FILES", str(_LAVAPIPE))
    os.environ.setdefault("VK_ICD_FILENAMES", str(_LAVAPIPE))
if _VALIDATE:
    (_FOLDER / "vk_layer_settings.txt").write_text(
        f"khronos_validation.enables = VK_VALIDATION_FEATURE_ENABLE_{_WHAT}_EXT\n"
        "khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG\n"
        # Newer layers leave out what shaders access unless asked, and an older one does not know the name.
        "khronos_validation.syncval_shader_accesses_heuristic = true\n"
        "khronos_validation.report_flags = error,warn\n"
        "khronos_validation.enable_message_limit = false\n"
        f"khronos_validation.log_filename = {_LOG}\n"
    )
    os.environ["VK_LAYER_SETTINGS_PATH"] = str(_FOLDER)
    os.environ["VK_INSTANCE_LAYERS"] = "VK_LAYER_KHRONOS_validation"


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "drivers: 16-bit floats and matrices, which make drivers runs on a newer lavapipe"
    )


def pytest_ignore_collect(collection_path, config):
    """Leave out, of the tests with one of these marks, the files that do not have it: onnx's cases take ten seconds of
    each process to make."""
    mark = config.option.markexpr
    if mark in ("alone", "drivers") and collection_path.match("test_*.py"):
        return True if f"mark.{mark}" not in collection_path.read_text() else None
    return None


class Reports:
    """What the validation layer writes; `take` gives what is new since it was last called."""

    active = _VALIDATE

    def __init__(self):
        self._seen = len(self._all())

    @staticmethod
    def _all():
        return _LOG.read_text(errors="replace") if _LOG.exists() else ""

    def take(self):
        text = self._all()
        new, self._seen = text[self._seen :], len(text)
        return new.strip()


@pytest.fixture(scope="session")
def device():
    """The device under test, as a selector for `vkconv.load` and friends."""
    return os.environ.get("VKCONV_TEST_DEVICE", "auto")


@pytest.fixture(autouse=True)
def validation():
    """Fail the test during which the validation layer reported anything that the test did not take."""
    reports = Reports()
    yield reports
    new = reports.take()
    if new:
        pytest.fail(f"the validation layer reported:\n{new}", pytrace=False)


@pytest.fixture(scope="session", autouse=True)
def layer_is_loaded(request):
    """A run without the layer would pass for the wrong reason. Tests that start other processes load none."""
    yield
    if _VALIDATE and any("device" in item.fixturenames for item in request.session.items):
        assert _LOG.exists(), "the validation layer never wrote its log: is vulkan-validationlayers installed?"


@pytest.fixture
def small_chunks(monkeypatch):
    """Many chunks and threads, also of small arrays."""
    from vkconv.backend.runtime import open_device  # once the environment above stands

    live = open_device()
    few = type(live.copying)(threads=4, bytes_per_thread=1024, chunk_bytes=4096)
    monkeypatch.setattr(live, "copying", few)
