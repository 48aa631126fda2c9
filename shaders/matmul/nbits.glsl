// What the kernels of matmul_nbits share: y = act(a w^T + bias), w of n rows (columns of y) in whole words of 32 / BITS
// values, the lowest bits first, in blocks of whole words with a scale, and a zero point that is packed likewise, the
// blocks of a row to whole bytes.
#extension GL_EXT_control_flow_attributes : require

const int VALUES = 32 / BITS;  // of a word
const int QUADS = VALUES / 4;

// Weights 4 quad to 4 quad + 3 of a word, each by definition: a scale that is taken out of the sums would make other
// numbers of what is infinite.
vec4 weights_of(uint word, int quad, float middle, float factor) {
    vec4 v;
    [[unroll]] for (int q = 0; q < 4; q++) v[q] = float(bitfieldExtract(word, (quad * 4 + q) * BITS, BITS)) - middle;
    return v * factor;
}

int block_of(int word) { return word >> BLOCK_SHIFT; }
float scale_at(int column, int block) { return LOAD(scale, column * (row_words >> BLOCK_SHIFT) + block); }

float zero_at(int column, int block) {
    if (!HAS_ZERO) return float(1 << (BITS - 1));
    uint bit = uint(block * BITS);
    uint at = uint(column) * uint(zero_bytes) + bit / 8u;
    return float(bitfieldExtract(zero[at / 4u], int(at % 4u * 8u + bit % 8u), BITS));
}
