// An order of all values of an element type, as unsigned words, the most significant first: NaN is above all numbers,
// and zeros of either sign are equal.
#if defined(DTYPE_i64)
uvec2 sort_key(VALUE v) { return uvec2(v.y ^ 0x80000000u, v.x); }
#elif defined(DTYPE_i32)
uvec2 sort_key(VALUE v) { return uvec2(uint(v) ^ 0x80000000u, 0u); }
#else
uvec2 sort_key(VALUE v) {
    uint bits = floatBitsToUint(v);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return uvec2(0xFFFFFFFFu, 0u);
    if ((bits << 1) == 0u) bits = 0u;
    return uvec2((bits >> 31) == 1u ? ~bits : bits | 0x80000000u, 0u);
}
#endif

bool key_below(uvec2 p, uvec2 q) { return p.x == q.x ? p.y < q.y : p.x < q.x; }
