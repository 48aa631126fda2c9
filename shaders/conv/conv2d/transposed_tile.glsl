// Elements of planes, 64 pixels by 64 of what follows them (channels, the depth of a sum), transposed in shared memory
// into words of eight along the latter: lanes read neighbouring pixels and write neighbouring words.
const int SIDE = 64, LANES = 256, VEC8S = SIDE / 8, LOADS = SIDE * VEC8S / LANES;
const int LINE = VEC8S + 1;

shared uvec4 tile[SIDE * LINE];

// Load i of an invocation is of pixel ``lane % SIDE`` and word ``i * (LANES / SIDE) + lane / SIDE``, its bits are the
// eight from i * 8 on; ``tile`` then has words by pixels, LINE apart.
#define STORE_TRANSPOSED(bits, lane)                                                             \
    [[unroll]] for (int i = 0; i < LOADS; i++) {                                                 \
        uvec4 vec8 = uvec4(bits[i * 8], bits[i * 8 + 2], bits[i * 8 + 4], bits[i * 8 + 6]);      \
        vec8 |= uvec4(bits[i * 8 + 1], bits[i * 8 + 3], bits[i * 8 + 5], bits[i * 8 + 7]) << 16; \
        tile[(lane) % SIDE * LINE + i * (LANES / SIDE) + (lane) / SIDE] = vec8;                  \
    }                                                                                            \
    barrier();
