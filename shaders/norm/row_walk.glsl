// The row of an invocation, for shaders that have a ROW_SET among their push constants.

uint row, part, lane;
uint first, last;  // elements of the row that are worked on here
uint items;        // of each lane
uint base;         // of the row in x and y
// LOAD_ROW comes before ITEM, an item with ``other`` past the end of the row.
#ifdef REGISTERS
#define EACH_ITEM [[unroll]] for (uint item = 0; item < ITEMS; item++)
#define LOAD_ROW(other) vec4 kept[ITEMS]; EACH_ITEM kept[item] = load_item(item, other);
#define ITEM(other) kept[item]
#else
#define EACH_ITEM for (uint item = 0; item < items; item++)
#define LOAD_ROW(other)
#define ITEM(other) load_item(item, other)
#endif

// False where there is nothing to do, for all lanes of a row alike.
bool find_row() {
    first = 0;
    last = count;
    part = 0;
#if defined(REDUCTION_SUBGROUP) || defined(REDUCTION_TREE)
    row = flat_group();
    lane = gl_LocalInvocationID.x;
#ifdef PARTS
    part = row % parts;
    row /= parts;
    first = part * chunk;
    last = min(first + chunk, count);
#endif
#ifdef CLUSTERS
    uint place = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    row = row * (gl_WorkGroupSize.x / LANES) + place / LANES;
    lane = place % LANES;
#elif defined(REDUCTION_SUBGROUP)
    if (LANES < gl_WorkGroupSize.x) {
        row = row * gl_NumSubgroups + gl_SubgroupID;
        lane = gl_SubgroupInvocationID;
    }
#endif
#else
    row = flat_index();
    lane = 0;
#endif
    if (row >= rows) return false;
    items = (last - first + 4 * LANES - 1) / (4 * LANES);
    uint outer = row / period;
    base = outer * outer_step + (row - outer * period) * inner_step;
    return true;
}

// Which element of the row is value j of an item; it may lie past the last.
uint element(uint item, uint j) {
    return first + (VEC4 ? (item * LANES + lane) * 4 + j : (item * 4 + j) * LANES + lane);
}

// Whether element i of an item is there: of a row in registers, all items but the last are whole.
bool inside(uint item, uint i) {
#ifdef REGISTERS
    if (item + 1 < ITEMS) return true;
#endif
    return i < last;
}

uint address(uint i) {
    if (WALK == DENSE) return base + i;
    if (WALK == STRIDED) return base + i * run_step;
    uint before = i / run;
    return base + before * run_step + (i - before * run);
}

vec4 load_item(uint item, float other) {
    vec4 v;
    if (VEC4) {
        uint i = element(item, 0);
        bool there = inside(item, i);
        vec4 loaded = LOAD4(x4, there ? address(i) / 4 : 0);
        v = there ? loaded : vec4(other);
    } else {
        [[unroll]] EACH_OF_VEC4 {
            uint i = element(item, j);
            bool there = inside(item, i);
            float one = LOAD(x, there ? address(i) : 0);
            v[j] = there ? one : other;
        }
    }
    return v;
}

// Zero past the end of the row.
vec4 inside_row(uint item, vec4 v) {
    if (VEC4) return inside(item, element(item, 0)) ? v : vec4(0.0);
    [[unroll]] EACH_OF_VEC4 v[j] = inside(item, element(item, j)) ? v[j] : 0.0;
    return v;
}
