"""What the parts of a kernel cost on a CPU driver: tile sizes of the routes by subgroups come from these."""

import dataclasses

from vkconv.policy import Policy


@dataclasses.dataclass(frozen=True, slots=True)
class Costs:
    """In ns of one core for a subgroup: a load, one of two and of four floats, handing a value to all lanes, a
    multiply-add, a loop iteration, and a loop-carried sum of one."""

    load: float
    load2: float
    load4: float
    share: float
    multiply_add: float
    iteration: float
    carry: float

    def of_vector(self, floats: int) -> float:
        """A load or store of at most four neighbouring floats by one vector."""
        return (self.load, self.load2, self.load4, self.load4)[floats - 1]


COSTS = Policy("kernels.subgroup_costs", Costs)
