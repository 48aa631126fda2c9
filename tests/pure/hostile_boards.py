"""A phone that lies: a stand-in of ssh and adb, and of the player there, whose every answer is hostile."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from phone_kit import ADB, SSH, stub

from vkconv.device import load_device

BOARD = ("--via", "ssh://pi@board")


@contextlib.contextmanager
def hostile_board(folder: Path, evil: str) -> Iterator[Path]:
    """The folder of a board, and the environment in which it is found."""
    root = folder / "boards"
    root.mkdir(exist_ok=True)
    stub(folder / "bin", "ssh", SSH, root)
    stub(folder / "bin", "adb", ADB, root)
    one_line = evil.replace("\r\n", " ")
    (root / "devices").write_text(f"{one_line}\t{one_line}\n")
    facts = json.loads(json.dumps(load_device("mali-g57").facts))
    driver = {"driverName": evil, "driverInfo": evil, "driverID": 9}
    facts["properties"]["VkPhysicalDeviceDriverProperties"] = driver
    block = {name: facts[name] for name in ("properties", "features", "extensions")}
    block["heaps"] = facts["memory"]["memoryHeaps"]
    report = {"capabilities": {"device": block}, "profiles": {"player": {"capabilities": ["device"]}}}
    (folder / "info").write_text(json.dumps(report))
    header = {"schema": "vkconv.played/1", "device": evil, "driver": evil, "timestamp_period_ns": 1.0}
    result = {"pack": evil, "label": evil, "status": "FAILED", "why": evil, "outputs": [], "nodes": []}
    result["conditions"] = {"battery_status": evil}
    (folder / "told").write_text(f"{json.dumps(header)}\n{evil}\n{json.dumps(result)}\n")
    player = folder / "bin" / "player"
    player.write_text(f'#!/bin/sh\ncase "$*" in *--info*) cat {folder}/info;; *) cat {folder}/told; exit 1;; esac\n')
    got = root / "pi@board" / ".cache" / "vkconv-player" / "run-1" / "got"
    got.mkdir(parents=True, exist_ok=True)
    (got / one_line.replace("/", "")).write_text("x")
    changes: Mapping[str, str] = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "VKCONV_PLAYER": str(player)}
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield root
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({name: value} if value is not None else {})
