// Which taps of a transposed convolution reach an output, along one axis. Input i and tap k meet at i s + k d, counted
// from the start of the padded output. With g = gcd(s, d), the taps that reach one place are k0, k0 + s/g, ... of the
// inputs i0, i0 - d/g, ...: none where the place is no multiple of g modulo s.

struct Taps {
    int first;   // k0; not below the kernel's size where no tap reaches the place
    int origin;  // i0, the input that meets it
    int begin;   // taps in steps of s/g: those from begin to end meet inputs that exist
    int end;
};

// inverse is the inverse of d/g modulo s/g.
Taps taps_reaching(int at, int s, int d, int g, int inverse, int count, int extent) {
    int rest = at % s;
    int first = rest % g == 0 ? rest / g * inverse % (s / g) : count;
    int origin = (at - first * d) / s;
    int step = d / g;
    int begin = origin < extent ? 0 : (origin - extent) / step + 1;
    int taps = first < count && at >= first * d ? min((count - first - 1) / (s / g) + 1, origin / step + 1) : 0;
    return Taps(first, origin, begin, taps);
}
