"""What a test needs and may not be there: without it the test is skipped with the reason, and in CI it fails."""

import importlib.util
import os

import pytest


def unavailable(reason):
    """End the test (or the import of its module): a skip that is shown, a failure where CI is set."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason} (in CI nothing may be missing)", pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def required(*packages):
    """Go on only if all these packages are installed. They are not imported: one of them needs OpenCV for that."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        unavailable(f"make setup installs {', '.join(missing)}")
