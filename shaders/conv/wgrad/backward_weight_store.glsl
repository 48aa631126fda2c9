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
