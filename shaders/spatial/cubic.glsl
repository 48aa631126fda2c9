// The kernel of cubic convolution at a distance of 0 or more: (a+2) d^3 - (a+3) d^2 + 1 up to 1, a (d^3 - 5 d^2 + 8 d -
// 4) up to 2. As products of its roots: the sums of powers cancel, and were off by several units where the kernel is
// small.
float cubic(float d, float a) {
    if (d <= 1.0) return (1.0 - d) * (1.0 + d - (a + 2.0) * d * d);
    return d < 2.0 ? a * (d - 1.0) * (2.0 - d) * (2.0 - d) : 0.0;
}
