"""What importers found no equivalent for, as one text."""

from collections import defaultdict
from collections.abc import Iterable

NAMES_SHOWN = 8


def report(model: str, what: str, problems: Iterable[tuple[str, str, str]], *advice: str) -> str:
    """Every problem, (kind, name, reason), those of one kind and reason together, of a ``model`` that is a ``what``."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for kind, name, reason in problems:
        groups[kind, reason].append(name)
    count = sum(map(len, groups.values()))
    lines = [f"{model}: vkconv cannot run this {what}, {count} places in it have no equivalent:"]
    for (kind, reason), names in groups.items():
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        lines.append(f"  {kind} ({', '.join(names[:NAMES_SHOWN])}{more}): {reason}")
    return "\n".join([*lines, *advice])
