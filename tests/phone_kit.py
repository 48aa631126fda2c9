"""Stand-ins for ``ssh`` and ``adb``, which run commands of a board on this machine, in a folder of its own, and fail as
cables do: what is in the file ``fault`` says how. ``rewrite``, a script of sed, changes what ssh is to run.
"""

import stat

# ssh [OPTIONS] -- HOST COMMAND
SSH = """#!/bin/sh
while [ "$1" != "--" ]; do shift; done
fault=$(cat {root}/fault 2>/dev/null)
case "$fault" in
  key) echo "$2: Permission denied (publickey)." >&2; exit 255;;
  host) echo "ssh: connect to host board port 22: No route to host" >&2; exit 255;;
esac
mkdir -p "{root}/$2" && cd "{root}/$2" || exit 1
command=$3
[ -f "{root}/rewrite" ] && command=$(printf '%s' "$command" | sed -f "{root}/rewrite")
{faults}
exec sh -c "$command"
"""

# adb devices | adb -s SERIAL shell COMMAND | adb -s SERIAL push FILE... FOLDER/
ADB = """#!/bin/sh
fault=$(cat {root}/fault 2>/dev/null)
if [ "$1" = devices ]; then echo "List of devices attached"; cat {root}/devices; exit 0; fi
serial=$2; verb=$3; shift 3
home="{root}/$serial"
mkdir -p "$home"
if [ "$verb" = push ]; then
  if [ "$fault" = full ]; then
    echo "adb: error: failed to copy '$1': remote write failed: No space left on device" >&2; exit 1
  fi
  for last; do :; done
  to="$home/${{last#/data/local/tmp/}}"
  while [ $# -gt 1 ]; do cp "$1" "$to" || exit 1; shift; done
  exit 0
fi
command=$(printf '%s' "$1" | sed "s#/data/local/tmp#$home#g")
{faults}
exec sh -c "$command"
"""

_FAULTS = """
case "$fault:$command" in
  cable:*--json*) sh -c "$command" | head -n 3; echo "error: device 'one' not found" >&2; exit 255;;
  broken:*--json*) sh -c "$command" | head -c 2500; echo "error: closed" >&2; exit 1;;
  reboot:*--json*) sh -c "$command" | head -n 2; echo "error: device offline" >&2; exit 1;;
  quiet:*--json*) sh -c "$command" | head -n 2; exit 0;;
  wrong:*uname*) echo mips64; exit 0;;
  full-shell:*mkdir*) echo "mkdir: cannot create: No space left on device" >&2; exit 1;;
esac
"""


def stub(folder, name, text, root):
    """Write a stand-in as a program; returns it."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(text.format(root=root, faults=_FAULTS))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program
