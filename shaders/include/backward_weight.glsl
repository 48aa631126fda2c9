// What the kernels of a convolution's gradient by its weights share: the push block of
// vkconv/ops/backward_weight_kernels.py, which part of the sum an invocation works on, and where results go.
#extension GL_EXT_control_flow_attributes : require
#ifdef ATOMIC_FLOAT
#extension GL_EXT_shader_atomic_float : require
#endif

layout(constant_id = 3) const bool TO_PARTS = false;  // each part as it is, [part][dw]; else the finished dw
layout(constant_id = 4) const bool HAS_ADD = false;
layout(constant_id = 5) const bool DEEP = false;    // three dimensions
layout(constant_id = 6) const bool PADDED = false;  // windows may reach beyond x

layout(push_constant) uniform Push {
    int n, c_in, d, h, w;
    int c_out, od, oh, ow, groups;
    int kd, kh, kw, sd, sh, sw, dd, dh, dw;
    int pf, pt, pl;
    int tile_n, tile_d, tile_h, tile_w;  // the reduction dimensions, cut into boxes of this size
    int cuts;                            // equal parts of each box
    int first_part;                      // where this launch's parts begin in the scratch
    float scale, beta;
};

layout(set = 0, binding = 0) readonly restrict buffer X { ELEM x[]; };
layout(set = 0, binding = 1) readonly restrict buffer Dy { ELEM dy[]; };
layout(set = 0, binding = 2) readonly restrict buffer Add { ELEM add[]; };
#if defined(ATOMIC_FLOAT)
layout(set = 0, binding = 3) restrict buffer Out { float result[]; };
#elif defined(ATOMIC_CAS)
layout(set = 0, binding = 3) coherent restrict buffer Out { uint result[]; };
#else
layout(set = 0, binding = 3) WRITEONLY restrict buffer Out { Y_ELEM result[]; };
#endif

// At least one, also where there is nothing to sum: dw is written then, too.
int boxes_along(int extent, int tile) { return max((extent + tile - 1) / tile, 1); }

int part_count() {
    return boxes_along(n, tile_n) * boxes_along(od, tile_d) * boxes_along(oh, tile_h) * boxes_along(ow, tile_w) * cuts;
}

// The box of a part: its first image and pixel of dy, its size, and which of its cuts the part is.
void box_of(int part, out ivec4 first, out ivec4 size, out int cut) {
    cut = part % cuts;
    int index = part / cuts;
    int boxes = boxes_along(ow, tile_w);
    first.w = index % boxes * tile_w;
    index /= boxes;
    boxes = boxes_along(oh, tile_h);
    first.z = index % boxes * tile_h;
    index /= boxes;
    boxes = boxes_along(od, tile_d);
    first.y = index % boxes * tile_d;
    first.x = index / boxes * tile_n;
    size = min(ivec4(tile_n, tile_d, tile_h, tile_w), ivec4(n, od, oh, ow) - first);
}

// The first of ``count`` that a cut has; the next cut's first is one past its last.
int first_of(int cut, int count) { return min(cut * ((count + cuts - 1) / cuts), count); }

#ifdef ATOMIC_CAS
// Adds to an element of dw, unless another invocation comes between: then false.
bool added(int index, float value) {
    uint before = result[index];
    return atomicCompSwap(result[index], before, floatBitsToUint(uintBitsToFloat(before) + value)) == before;
}
#endif

// ``index`` in dw, of ``total`` elements.
void store(int part, int index, int total, float value) {
#if defined(ATOMIC_FLOAT)
    atomicAdd(result[index], scale * value);
#elif defined(ATOMIC_CAS)
    for (bool done = false; !done;) done = added(index, scale * value);
#else
    float more = HAS_ADD && !TO_PARTS ? beta * LOAD(add, index) : 0.0;
    if (TO_PARTS) {
        STORE_Y(result, (first_part + part) * total + index, value);
    } else {
        STORE_Y(result, index, HAS_ADD ? scale * value + more : scale * value);
    }
#endif
}
