"""Every operator of ATen that has a rule, by its name and overload."""

from collections.abc import Mapping

from vkconv.graph.aten import elementwise, movement, windows
from vkconv.graph.aten.view import Rule

RULES: Mapping[str, Rule] = {**elementwise.RULES, **movement.RULES, **windows.RULES}
