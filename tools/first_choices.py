"""Compiles what the planner takes first for GPUs that are not here and holds it to bench/results/compiled/<gpu>.csv:

    python tools/first_choices.py                   # fails where a first choice got worse, and prints the difference
    python tools/first_choices.py --write           # writes the tables anew
    python tools/first_choices.py --with mali-g610,raspberry-pi-5

Without --with it takes the GPUs of the set arm64, whose drivers are emulated here: that takes minutes. `make
compile-phones` installs the set and does the first.
"""

import argparse
import sys
import time
from pathlib import Path

from vkconv.compilers.first_choices import (
    choices_of,
    compile_words,
    read_choices,
    summary,
    workloads,
    worse,
    write_choices,
)
from vkconv.compilers.gpus import data, find_gpus, set_of
from vkconv.core import VkconvError

FOLDER = Path(__file__).parents[1] / "bench" / "results" / "compiled"
MAX_SECONDS = 60.0


def main() -> None:
    """Compile, then compare or write."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    arguments.add_argument("--with", dest="gpus", default="", metavar="GPU,...")
    arguments.add_argument("--write", action="store_true")
    given = arguments.parse_args()
    phones = [gpu for gpu in data().gpus if set_of(gpu) == "arm64"]
    gpus = [gpu.name for gpu in (find_gpus(given.gpus) if given.gpus else phones)]
    start, results = time.monotonic(), []
    for name, words in workloads():
        results.append(compile_words(words, gpus, MAX_SECONDS))
        print(f"{name}: {len(results[-1].rows)} pipelines, {time.monotonic() - start:.0f} s", flush=True)
    headers = {header.name: header for result in results for header in result.gpus}
    FOLDER.mkdir(exist_ok=True, parents=True)
    lines = []
    for name in gpus:
        found = choices_of(headers[name], [row for result in results for row in result.rows])
        path = FOLDER / f"{name}.csv"
        print(summary(found))
        if given.write:
            path.write_text(write_choices(found))
        elif not path.exists():
            lines.append(f"{name}: there is no {path.name}; --write makes it")
        else:
            kept = read_choices(path.read_text())
            if kept.version != found.version:
                print(f"{name}: the table is of Mesa {kept.version}, and {found.version} is installed")
            lines += worse(kept, found)
    print(*lines, sep="\n", end="\n" if lines else "")
    sys.exit(f"{len(lines)} first choices got worse" if lines else 0)


if __name__ == "__main__":
    try:
        main()
    except VkconvError as error:
        sys.exit(str(error))
