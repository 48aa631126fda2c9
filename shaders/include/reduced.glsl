// What a product becomes that is reduced before anything is stored: how two values are one, and where results go.
// Kernels by subgroups define SUBGROUP_LANES before.
#include "reduction.glsl"
#ifdef ATOMIC_FLOAT
#extension GL_EXT_shader_atomic_float : require
#endif

const uint ADD = 0, MAX = 1, MIN = 2, SQUARES = 3, NORM = 4;

// With ALSO the product is reduced twice, by FUNCTION and by SECOND, one after the other: parts of the second begin
// ``also_at`` numbers behind those of the first.
#ifdef ALSO
const int REDUCTIONS = 2;
uint function_of(int reduction) { return reduction == 0 ? FUNCTION : SECOND; }
int place_of_part(int index, int reduction) { return index + reduction * also_at; }
#else
const int REDUCTIONS = 1;
uint function_of(int reduction) { return FUNCTION; }
int place_of_part(int index, int reduction) { return index; }
#endif

// What changes no result of a reduction.
float nothing(int reduction) {
    uint function = function_of(reduction);
    return function == MAX ? LOWEST : function == MIN ? HIGHEST : 0.0;
}

float combined(int reduction, float p, float q) {
    uint function = function_of(reduction);
    return function == MAX ? larger(p, q) : function == MIN ? smaller(p, q) : p + q;
}

// What is combined of a value of the product.
float term_of(int reduction, float value) {
    uint function = function_of(reduction);
    return function == SQUARES || function == NORM ? value * value : value;
}

#ifdef SUBGROUP_LANES
// Over the lanes of a subgroup, which all get it.
float over_lanes(int reduction, float value) {
    // Mesa leaves a loop that halves its counter as it is, and with it all around it, registers indexed as memory.
    [[unroll]] for (int i = 0; i < 7; i++) {
        if ((1 << i) < SUBGROUP_LANES) value = combined(reduction, value, subgroupShuffleXor(value, 1 << i));
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

void put(int reduction, int index, float value, float divisor) {
#if defined(ATOMIC_FLOAT)
    atomicAdd(LOAD(y, index), value / divisor);
#elif defined(ATOMIC_CAS)
    if (FUNCTION != MAX && FUNCTION != MIN) {
        for (bool done = false; !done;) done = added(index, value / divisor);
    } else {
        keep_extreme(index, value);
    }
#else
    STORE_Y(y, place_of_part(index, reduction), result_of(value, divisor));
#endif
}
