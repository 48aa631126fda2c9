"""Writes the device files of GPUs whose drivers run without them (gpus.toml: device) anew, from what the drivers say:

    python tools/driver_files.py                    # of all GPUs whose compilers are installed
    python tools/driver_files.py adreno-740 navi31

A new file starts as one with `source`, which names what is by hand after "By hand: ", `target`, and the facts that the
shim invents: these stay.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from vkconv.compilers.device_files import device_file
from vkconv.compilers.gpus import data, find_gpu, set_of
from vkconv.compilers.installed import installed
from vkconv.compilers.live import live_facts
from vkconv.device import files

FOLDER = Path(files.__file__).parent / "data"


def main(names: Iterable[str]) -> None:
    """Write the files of GPUs, or of all whose compilers are here."""
    every = [gpu for gpu in data().gpus if gpu.device and installed(set_of(gpu))]
    for gpu in [find_gpu(name) for name in names] or every:
        if not gpu.device:
            sys.exit(f"{gpu.name} has no device file: vkconv/compilers/gpus.toml names it as device")
        path = FOLDER / f"{gpu.device}.json"
        kept = json.loads(path.read_text()) if path.exists() else {}
        facts = device_file(gpu, live_facts(gpu), kept)
        path.write_text(json.dumps(facts, indent=1) + "\n")
        print(f"{path.name}: {gpu.title}, {facts['properties']['VkPhysicalDeviceDriverProperties']['driverInfo']}")


if __name__ == "__main__":
    main(sys.argv[1:])
