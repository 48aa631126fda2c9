// The copy with channels last has the words of a pixel side by side; or, of a BLOCK, so many of them, and those of all
// pixels before the next ones.

// Words that a group of channels has.
int vec8s_of(int channels) {
    int vec8s = (channels + 7) / 8;
    return BLOCK == 0 ? vec8s : (vec8s + BLOCK - 1) / BLOCK * BLOCK;
}

// Where word ``vec8`` of ``all`` is that a pixel has.
int place_of(int pixel, int vec8, int pixels, int all) {
    return BLOCK == 0 ? pixel * all + vec8 : (vec8 / BLOCK * pixels + pixel) * BLOCK + vec8 % BLOCK;
}
