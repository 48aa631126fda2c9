// Values that all lanes of a subgroup need alike: the subgroup loads 4 x SUBGROUP of them at once, a vec4 to a lane,
// and shuffles hand them out. On a driver that makes a load lane by lane, whether or not the addresses agree, this is
// what makes them cheap. Subgroups are full: the route asks for a local size that they divide.
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
// vec4 of a lane, for so many values.
#define LANE_VEC4S(count, subgroup) (((count) + 4 * (subgroup) - 1) / (4 * (subgroup)))
// Value i of those that the lanes have in an array of so many.
#define SHUFFLED(lane_vec4s, i, subgroup) \
    subgroupShuffle(lane_vec4s[(i) / (4 * (subgroup))][(i) % 4], (i) / 4 % (subgroup))
