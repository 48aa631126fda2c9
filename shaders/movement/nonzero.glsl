// By the bits, so that a number below the normal ones counts where a driver takes it for zero.
#if defined(DTYPE_i64)
bool is_nonzero(VALUE v) { return (v.x | v.y) != 0u; }
#elif defined(DTYPE_i32)
bool is_nonzero(VALUE v) { return v != 0; }
#else
bool is_nonzero(VALUE v) { return (floatBitsToUint(v) << 1) != 0u; }
#endif
