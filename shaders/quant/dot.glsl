// The sum of the products of four signed bytes with four: one instruction where the device has it. ADD_PRODUCTS adds
// those of words a[rows] with b[4] to acc[4 * rows]: byte by byte where it is several, so that no more than 4 + 1 bytes
// are apart from their words at a time. sum_of_bytes is that of the four.

#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require

// OpSDot of SPV_KHR_integer_dot_product, with the capabilities DotProduct and DotProductInput4x8BitPacked; format 0 is
// four bytes in a word.
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450)
int packed_dot(uint a, uint b, spirv_literal int format);

int dot_of_bytes(uint a, uint b) {
    return packed_dot(a, b, 0);
}

#define ADD_PRODUCTS(rows, a, b, acc)                                                      \
    [[unroll]] for (int i = 0; i < rows; i++) {                                            \
        [[unroll]] for (int j = 0; j < 4; j++) acc[4 * i + j] += dot_of_bytes(a[i], b[j]); \
    }

int sum_of_bytes(uint a) { return dot_of_bytes(a, 0x01010101u); }
#else
int dot_of_bytes(uint a, uint b) {
    int sum = 0;
    [[unroll]] for (int k = 0; k < 4; k++) sum += bitfieldExtract(int(a), 8 * k, 8) * bitfieldExtract(int(b), 8 * k, 8);
    return sum;
}

// By sums of halves, which takes no byte apart.
int sum_of_bytes(uint a) {
    uint flipped = a ^ 0x80808080u;
    uint pairs = (flipped & 0x00FF00FFu) + (flipped >> 8 & 0x00FF00FFu);
    return int((pairs & 0xFFFFu) + (pairs >> 16)) - 512;
}

#define ADD_PRODUCTS(rows, a, b, acc)                                                          \
    [[unroll]] for (int k = 0; k < 4; k++) {                                                   \
        int of_b[4];                                                                           \
        [[unroll]] for (int j = 0; j < 4; j++) of_b[j] = bitfieldExtract(int(b[j]), 8 * k, 8); \
        [[unroll]] for (int i = 0; i < rows; i++) {                                            \
            int of_a = bitfieldExtract(int(a[i]), 8 * k, 8);                                   \
            [[unroll]] for (int j = 0; j < 4; j++) acc[4 * i + j] += of_a * of_b[j];           \
        }                                                                                      \
    }
#endif
