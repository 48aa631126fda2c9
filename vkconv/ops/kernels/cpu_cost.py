"""What the parts of a kernel cost on a CPU driver: tile sizes of the routes by subgroups come from these."""

import dataclasses


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


# lavapipe (Mesa 22.3, 8 lanes), what tools/lane_costs.py measures and the arithmetic of addresses and bounds on top: a
# load or a store goes lane by lane with a test and a branch for each, also where all lanes have one address; one of
# four floats costs little more than twice that. Loop-carried values are stored under a mask in each iteration:
# 576x14x14 to 96 by 1x1, 32x8 sums, takes a subgroup 193, 162 and 147 ns a channel with one, two and four an iteration.
COSTS = Costs(load=10.0, load2=14.0, load4=24.0, share=0.5, multiply_add=0.3, iteration=10.0, carry=0.25)
