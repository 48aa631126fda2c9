// Included first by every shader, after its #version: local size from specialization constants, element types, flat index.
#extension GL_GOOGLE_include_directive : require

layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;

// ELEM is how one element lies in a buffer; arithmetic is f32. Exactly one DTYPE_* is defined per variant.
#if defined(DTYPE_f32)
#define ELEM float
#define TO_F32(e) (e)
#define FROM_F32(f) (f)
#elif defined(DTYPE_u32)
#define ELEM uint
#elif defined(DTYPE_i32)
#define ELEM int
#define TO_F32(e) float(e)
#define FROM_F32(f) int(f)
#elif defined(DTYPE_i64)
#define ELEM uvec2  // two's complement, the low word first: int64.glsl
#else
#error "no DTYPE_* is defined"
#endif

// Index of this invocation in a 1-D grid that linear_groups() may have folded over y.
uint flat_index() {
    return gl_GlobalInvocationID.y * (gl_NumWorkGroups.x * gl_WorkGroupSize.x) + gl_GlobalInvocationID.x;
}

// Index of this workgroup in a 1-D grid that linear_groups() may have folded over y: the same in every lane.
uint flat_group() {
    return gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
}
