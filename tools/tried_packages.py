"""Writes vkconv/compilers/packages.toml from the sets of compilers that are installed here: versions and digests that
`vkconv compilers install` goes by from then on. Run it after `vkconv compilers install SET --any-version` and a look at
what `vkconv compile` then says; sets that are not installed keep what they have.

    python tools/tried_packages.py
"""

import datetime
from pathlib import Path

from vkconv.compilers import gpus
from vkconv.compilers.installed import installed

PATH = Path(gpus.__file__).with_name("packages.toml")


def main() -> None:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    lines = ["# Packages as they were tried, by set. tools/tried_packages.py writes this file.", ""]
    for name in gpus.data().sets:
        there = installed(name)
        packages = there.manifest.packages if there else gpus.tried(name)
        if not packages:
            continue
        lines += [f"# {today}, {len(packages)} packages"] if there else []
        lines += [f"[{name}]"]
        lines += [
            f'"{package}" = {{ version = "{known.version}", sha256 = "{known.sha256}" }}'
            for package, known in sorted(packages.items())
        ]
        lines += [""]
    PATH.write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    main()
