// Values that all lanes of a subgroup need alike, in the order of `held4`: the subgroup loads 4 x SUBGROUP of them at
// once, each lane four, and shuffles hand them out. On a driver that makes a load lane by lane, whether or not the
// addresses agree, this is what makes them cheap. Subgroups are full: the route asks for a local size that they divide.
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#define HELD(count, subgroup) (((count) + 4 * (subgroup) - 1) / (4 * (subgroup)))
#define HELD_VALUE(held, i, subgroup) subgroupShuffle(held[(i) / (4 * (subgroup))][(i) % 4], (i) / 4 % (subgroup))
