// Rows that are reduced to a number, in two variants of one shader. WORKGROUP: one workgroup per row, lanes meet in
// shared memory in a fixed tree, so that results repeat bit for bit. Otherwise one invocation per row.
#ifdef WORKGROUP

const uint MAX_LANES = 256;
shared ELEM partial[MAX_LANES];

uint row_index() { return flat_group(); }
uint lane_index() { return gl_LocalInvocationIndex; }
uint lane_count() { return gl_WorkGroupSize.x; }

// Needs a COMBINE(p, q) macro to be defined by the shader; the workgroup size is a power of two. Every lane gets
// the result. Called in uniform control flow only.
#define ROW_REDUCE(value)                                                         \
    {                                                                             \
        barrier();                                                                \
        partial[gl_LocalInvocationIndex] = value;                                 \
        barrier();                                                                \
        for (uint step = gl_WorkGroupSize.x / 2; step > 0; step /= 2) {           \
            if (gl_LocalInvocationIndex < step) {                                 \
                ELEM p = partial[gl_LocalInvocationIndex];                        \
                ELEM q = partial[gl_LocalInvocationIndex + step];                 \
                partial[gl_LocalInvocationIndex] = COMBINE(p, q);                 \
            }                                                                     \
            barrier();                                                            \
        }                                                                         \
        value = partial[0];                                                       \
    }

#else

uint row_index() { return flat_index(); }
uint lane_index() { return 0u; }
uint lane_count() { return 1u; }

#define ROW_REDUCE(value)

#endif
