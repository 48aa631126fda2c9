// What an update makes of an element: id is 0 for taking its place, then sum, product, largest, smallest.
#ifdef DTYPE_i64
#include "int64.glsl"
VALUE combine(uint id, VALUE old, VALUE update) {
    switch (id) {
    case 1: return add64(old, update);
    case 2: return mul64(old, update);
    case 3: return less64(old, update) ? update : old;
    case 4: return less64(update, old) ? update : old;
    }
    return update;
}
#else
#include "extremes.glsl"
VALUE combine(uint id, VALUE old, VALUE update) {
    switch (id) {
    case 1: return old + update;
    case 2: return old * update;
    case 3: return larger(old, update);
    case 4: return smaller(old, update);
    }
    return update;
}
#endif
