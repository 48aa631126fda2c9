// What a product becomes that is reduced before anything is stored: how two values are one, and where results go.
// Kernels by subgroups define SUBGROUP_LANES before.
#include "reduction.glsl"
#ifdef ATOMIC_FLOAT
#extension GL_EXT_shader_atomic_float : require
#endif

const uint ADD = 0, MAX = 1, MIN = 2, SQUARES = 3, NORM = 4;

// What changes no result.
float nothing() { return FUNCTION == MAX ? LOWEST : FUNCTION == MIN ? HIGHEST : 0.0; }

float combined(float p, float q) {
    return FUNCTION == MAX ? larger(p, q) : FUNCTION == MIN ? smaller(p, q) : p + q;
}

// What is combined of a value of the product.
float term_of(float value) { return FUNCTION == SQUARES || FUNCTION == NORM ? value * value : value; }

#ifdef SUBGROUP_LANES
// Over the lanes of a subgroup, which all get it.
float over_lanes(float value) {
    // Mesa leaves a loop that halves its counter as it is, and with it all around it, registers indexed as memory.
    [[unroll]] for (int i = 0; i < 7; i++) {
        if ((1 << i) < SUBGROUP_LANES) value = combined(value, subgroupShuffleXor(value, 1 << i));
    }
    return value;
}
#endif

#ifdef ATOMIC_CAS
// Adds to an output, unless another invocation comes between: then false.
bool added(int index, float value) {
    uint before = LOAD(y, index);
    return atomicCompSwap(LOAD(y, index), before, floatBitsToUint(uintBitsToFloat(before) + value)) == before;
}

// Positive floats have the order of their bits, negative ones the opposite one, as unsigned integers all above the
// positive: the integer maximum or minimum that keeps the order depends on the sign of the newcomer alone. NaN comes as
// the positive one to a maximum and as the negative one to a minimum, where nothing is beyond it.
void keep_extreme(int index, float value) {
    uint sign_bit = 0x80000000u;
    uint bits = isnan(value) ? FUNCTION == MAX ? NAN_BITS : NAN_BITS | sign_bit : floatBitsToUint(value);
    bool negative = (bits & sign_bit) != 0u;
    if (FUNCTION == MAX) {
        if (negative) atomicMin(LOAD(y, index), bits);
        else atomicMax(y_signed[index], int(bits));
    } else {
        if (negative) atomicMax(LOAD(y, index), bits);
        else atomicMin(y_signed[index], int(bits));
    }
}
#endif

// What a result is of all that was combined: a mean is a sum over ``divisor``, which is 1 for what is combined later, a
// norm the root of the squares.
float result_of(float value, float divisor) {
    return FUNCTION == NORM && !TO_PARTS ? sqrt(value) : value / divisor;
}

void put(int index, float value, float divisor) {
#if defined(ATOMIC_FLOAT)
    atomicAdd(LOAD(y, index), value / divisor);
#elif defined(ATOMIC_CAS)
    if (FUNCTION != MAX && FUNCTION != MIN) {
        for (bool done = false; !done;) done = added(index, value / divisor);
    } else {
        keep_extreme(index, value);
    }
#else
    STORE_Y(y, index, result_of(value, divisor));
#endif
}
