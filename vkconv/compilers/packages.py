"""Debian packages, unpacked beside the system: found by the machine's own apt sources, checked, never installed.

No root is needed, and nothing outside the given folder is touched.
"""

import dataclasses
import fnmatch
import hashlib
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

from vkconv.compilers.gpus import PackageSet, Tried
from vkconv.core import UsageError

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_OTHERWISE = "docs/compilers.md says how to bring the packages from another machine"
_URI = re.compile(r"'[^']+' (?P<name>[^\s_]+)_(?P<version>[^\s_]+)_\w+\.deb (?P<size>\d{1,18})\b.*")
_TIMEOUT_S = 900


@dataclasses.dataclass(frozen=True)
class Package:
    """One package as the machine's source serves it."""

    name: str
    version: str
    nbytes: int
    sha256: str


def host_architecture() -> str:
    """This machine's architecture in Debian's words."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


class Apt:
    """apt with state of its own, in a folder, for one set of packages: nothing of the machine's apt but its sources and
    keys. Raises UsageError where a tool, a key or a source is missing."""

    def __init__(self, folder: Path, architecture: str, suites: Sequence[str]) -> None:
        for tool in ("apt-get", "dpkg-deb"):
            if shutil.which(tool) is None:
                raise UsageError(f"there is no {tool} here: the compilers come in Debian's packages; {_OTHERWISE}")
        if not KEYRING.is_file():
            raise UsageError(
                f"there is no {KEYRING}, which checks Debian's packages: apt-get install debian-archive-keyring"
            )
        self.folder, self.suites = folder, tuple(suites)
        for made in ("lists/partial", "archives/partial"):
            (folder / made).mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()  # nothing is installed: all that is needed comes along, down to the C library
        uri = _source()
        lines = [f"deb [arch={architecture} signed-by={KEYRING}] {uri} {suite} main\n" for suite in suites]
        (folder / "sources.list").write_text("".join(lines))
        settings = {
            "Dir::Etc::SourceList": folder / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::Etc::Preferences": "/dev/null",
            "Dir::Etc::PreferencesParts": "/dev/null",
            "Dir::State": folder,
            "Dir::State::Lists": folder / "lists",
            "Dir::State::Status": folder / "status",
            "Dir::Cache": folder,
            "Dir::Cache::Archives": folder / "archives",
            "APT::Architectures": architecture,
            "APT::Architecture": architecture,
            "APT::Sandbox::User": "root",
            "APT::Update::Error-Mode": "any",
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
        }
        self._options = ["-qq", *(word for key, value in settings.items() for word in ("-o", f"{key}={value}"))]

    def update(self) -> None:
        """Read what the suites have."""
        self._run(
            "update", failed=f"{' and '.join(self.suites)} cannot be read from where this machine takes its packages"
        )

    def resolve(self, packages: PackageSet) -> list[Package]:
        """The packages of a set with all that they need, as they are served now, less what the set leaves out."""
        said = self._run(
            *("--print-uris", "-y", "--no-install-recommends", "-t", self.suites[-1], "install", *packages.packages),
            failed=f"{', '.join(packages.packages)} cannot be had from {self.suites[-1]}",
        )
        needed = [
            found
            for found in parse_uris(said)
            if not any(fnmatch.fnmatchcase(found[0], name) for name in packages.without)
        ]
        wanted = [f"{name}={version}" for name, version, _ in needed]
        digests = parse_digests(self._run("show", *wanted, failed="apt-cache knows no digests", tool="apt-cache"))
        return [Package(name, version, nbytes, digests.get((name, version), "")) for name, version, nbytes in needed]

    def download(self, packages: Sequence[Package]) -> list[Path]:
        """The packages' files. UsageError where one is not what it was announced as."""
        wanted = [f"{p.name}={p.version}" for p in packages]
        self._run("download", *wanted, failed="packages cannot be downloaded", cwd=self.folder / "archives")
        files = {}
        for path in (self.folder / "archives").glob("*.deb"):
            name, version, _ = unquote(path.stem).split("_")
            files[name, version] = path
        missing = [p.name for p in packages if (p.name, p.version) not in files]
        if missing:
            raise UsageError(f"apt-get downloaded no {', '.join(missing)}")
        for p in packages:
            digest = hashlib.sha256(files[p.name, p.version].read_bytes()).hexdigest()
            if digest != p.sha256:
                raise UsageError(
                    f"{files[p.name, p.version].name} has the sha256 {digest}, not {p.sha256}: it is damaged"
                )
        return [files[p.name, p.version] for p in packages]

    def _run(self, *command: str, failed: str, tool: str = "apt-get", cwd: Path | None = None) -> str:
        try:
            done = subprocess.run(
                [tool, *self._options, *command],
                capture_output=True,
                text=True,
                errors="replace",
                cwd=cwd,
                timeout=_TIMEOUT_S,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise UsageError(f"{failed}: no answer in {_TIMEOUT_S} s") from None
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:"))][-3:]
            raise UsageError("\n  ".join([f"{failed}; {tool} says:", *(lines or done.stderr.splitlines()[-3:])]))
        return done.stdout


def parse_uris(text: str) -> list[tuple[str, str, int]]:
    """What ``apt-get --print-uris install`` prints: name, version and bytes of each package."""
    found = [match for line in text.splitlines() if (match := _URI.fullmatch(line.strip()))]
    return [(match["name"], unquote(match["version"]), int(match["size"])) for match in found]


def parse_digests(text: str) -> dict[tuple[str, str], str]:
    """What ``apt-cache show`` prints: the sha256 of each package's file, by name and version."""
    digests = {}
    for stanza in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|SHA256): (\S+)$", stanza, re.MULTILINE))
        if len(fields) == 3:
            digests[fields["Package"], fields["Version"]] = fields["SHA256"]
    return digests


def differences(packages: Mapping[str, Tried], known: Mapping[str, Tried]) -> list[str]:
    """How packages differ from those that were tried, a line for each."""
    lines = []
    for name, package in packages.items():
        if name not in known:
            lines.append(f"{name} {package.version} was not tried at all")
        elif known[name].version != package.version:
            lines.append(f"{name} is {package.version}, and {known[name].version} was tried")
        elif known[name].sha256 != package.sha256:
            lines.append(
                f"{name} {package.version} has the sha256 {package.sha256}, and {known[name].sha256} was tried"
            )
    return lines


def unpack(file: Path, folder: Path) -> None:
    """Unpack a package's files into a folder. UsageError where it is damaged."""
    done = subprocess.run(["dpkg-deb", "-x", file, folder], capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise UsageError(f"{file.name} cannot be unpacked: {done.stderr.strip()}")


def _source() -> str:
    """Where this machine takes Debian's packages from: the source of its own release, else of any."""
    command = [
        "apt-get",
        "indextargets",
        "--no-release-info",
        "--format",
        "$(RELEASE) $(REPO_URI)",
        "Identifier: Packages",
    ]
    said = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S).stdout
    release = platform.freedesktop_os_release().get("VERSION_CODENAME", "stable")
    for line in said.splitlines():
        name, _, uri = line.partition(" ")
        if uri and (name == release or re.fullmatch(r"(old)*stable", name)):
            return uri
    raise UsageError(f"no source of Debian's packages is set up in /etc/apt; {_OTHERWISE}")
