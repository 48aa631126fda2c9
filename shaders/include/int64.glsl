// Arithmetic of 64-bit two's complement integers as two words, the low one first: no device needs 64-bit integers for
// it.

bool negative64(uvec2 p) { return (p.y >> 31) == 1u; }

bool less64(uvec2 p, uvec2 q) {
    return p.y == q.y ? p.x < q.x : int(p.y) < int(q.y);
}

bool less_unsigned64(uvec2 p, uvec2 q) {
    return p.y == q.y ? p.x < q.x : p.y < q.y;
}

uvec2 add64(uvec2 p, uvec2 q) {
    uint carry;
    uint low = uaddCarry(p.x, q.x, carry);
    return uvec2(low, p.y + q.y + carry);
}

uvec2 negate64(uvec2 p) { return add64(~p, uvec2(1u, 0u)); }

uvec2 sub64(uvec2 p, uvec2 q) { return add64(p, negate64(q)); }

uvec2 abs64(uvec2 p) { return negative64(p) ? negate64(p) : p; }

uvec2 mul64(uvec2 p, uvec2 q) {
    uint high, low;
    umulExtended(p.x, q.x, high, low);
    return uvec2(low, high + p.x * q.y + p.y * q.x);
}

// p shifted by less than 64 bits.
uvec2 shift_left64(uvec2 p, uint by) {
    if (by == 0u) return p;
    if (by >= 32u) return uvec2(0u, p.x << (by - 32u));
    return uvec2(p.x << by, (p.y << by) | (p.x >> (32u - by)));
}

uvec2 shift_right64(uvec2 p, uint by) {
    uint fill = uint(int(p.y) >> 31);
    if (by == 0u) return p;
    if (by >= 32u) return uvec2(uint(int(p.y) >> int(by - 32u)), fill);
    return uvec2((p.x >> by) | (p.y << (32u - by)), uint(int(p.y) >> int(by)));
}

// Quotient of magnitudes, bit by bit; the remainder goes to rest. q is not 0.
uvec2 divide64(uvec2 p, uvec2 q, out uvec2 rest) {
    uvec2 quotient = uvec2(0u);
    rest = uvec2(0u);
    for (int bit = 63; bit >= 0; bit--) {
        bool lost = negative64(rest);
        rest = shift_left64(rest, 1u);
        rest.x |= ((bit >= 32 ? p.y : p.x) >> uint(bit & 31)) & 1u;
        if (lost || !less_unsigned64(rest, q)) {
            rest = sub64(rest, q);
            if (bit >= 32) quotient.y |= 1u << uint(bit - 32);
            else quotient.x |= 1u << uint(bit);
        }
    }
    return quotient;
}
