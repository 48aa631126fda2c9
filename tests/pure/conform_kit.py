"""Checks that workers do without a device: what becomes of each is in the number of its call's elements."""

import os
import signal
import time

from vkconv.check.conformance import Check, row_of
from vkconv.check.pool import in_workers
from vkconv.core import DeviceError

CRASH, HANG, LOST, TALK, SLOW = 1001, 1002, 1003, 1004, 1005


def check(size, route="elementwise"):
    return Check(f"relu:x={size}", (("relu", route),), "f32")


class Fake:
    device_key = "fake"
    is_lost = False

    def conform(self, check):
        size = int(check.text.rpartition("=")[2])
        if size == CRASH:
            os.kill(os.getpid(), signal.SIGSEGV)
        if size == HANG:
            time.sleep(600)
        if size == SLOW:
            time.sleep(2)
        if size == TALK:
            print("a driver's remark", flush=True)
        self.is_lost = size == LOST
        return row_of(check, "error" if self.is_lost else "ok", str(os.getpid()))


def without_device():
    raise DeviceError("no Vulkan device found")


def that_ends():
    os._exit(3)


def rows(checks, make=Fake, jobs=2, **how):
    """What each check came to, in the order in which they were done."""
    return list(in_workers(checks, make, jobs, **{"device_key": "fake", **how}))


if __name__ == "__main__":  # a parent to be killed while its worker waits: it says which that is
    for _, row in in_workers([check(3), check(4), check(5)], Fake, 1, device_key="fake"):
        print(row.why, flush=True)
        time.sleep(600)
