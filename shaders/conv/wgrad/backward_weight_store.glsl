// Where a sum of a gradient by the weights goes: a slice in scratch, the finished dw, or what atomics add to.
#ifdef ATOMIC_FLOAT
#extension GL_EXT_shader_atomic_float : require
#endif

#ifdef ATOMIC_CAS
// Adds to an element of dw, unless another invocation comes between: then false.
bool added(int index, float value) {
    uint before = result[index];
    return atomicCompSwap(result[index], before, floatBitsToUint(uintBitsToFloat(before) + value)) == before;
}
#endif

// ``index`` in dw, of ``total`` elements.
void store(int slice, int index, int total, float value) {
#if defined(ATOMIC_FLOAT)
    atomicAdd(result[index], scale * value);
#elif defined(ATOMIC_CAS)
    for (bool done = false; !done;) done = added(index, scale * value);
#else
    float more = HAS_ADD && !TO_SCRATCH ? beta * LOAD(add, index) : 0.0;
    if (TO_SCRATCH) {
        STORE_Y(result, (first_slice + slice) * total + index, value);
    } else {
        STORE_Y(result, index, HAS_ADD ? scale * value + more : scale * value);
    }
#endif
}

#if defined(ATOMIC_FLOAT) || defined(ATOMIC_CAS)
const bool STORES_VEC4 = false;
#define STORE_VEC4(slice, index, total, values) {}
#else
// Whether nothing is added to what is stored.
const bool STORES_VEC4 = TO_SCRATCH || !HAS_ADD;

// Four elements from ``index`` on, a multiple of four, as ``total`` is.
#define STORE_VEC4(slice, index, total, values)                                    \
    if (TO_SCRATCH) {                                                              \
        STORE_Y4(result4, ((first_slice + (slice)) * (total) + (index)) / 4, values); \
    } else {                                                                       \
        STORE_Y4(result4, (index) / 4, scale * (values));                          \
    }
#endif
