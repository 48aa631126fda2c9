// Quotient and rest, by a factor and a shift in place of a division (vkconv/ops/core/base.py, `reciprocal`), which
// takes lanes that do little else as long as all of that.
ivec2 divided(int x, int divisor, uint factor, uint shift) {
    uint high, low;
    umulExtended(uint(x), factor, high, low);
    int quotient = divisor == 1 ? x : int(high >> shift);
    return ivec2(quotient, x - quotient * divisor);
}
