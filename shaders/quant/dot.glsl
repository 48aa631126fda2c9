// The sum of the products of four signed bytes with four: one instruction where the device has it.

#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require

// OpSDot of SPV_KHR_integer_dot_product, with the capabilities DotProduct and DotProductInput4x8BitPacked; format 0 is
// four bytes in a word.
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450)
int packed_dot(uint a, uint b, spirv_literal int format);

int dot_of_bytes(uint a, uint b) {
    return packed_dot(a, b, 0);
}
#else
int dot_of_bytes(uint a, uint b) {
    int sum = 0;
    [[unroll]] for (int k = 0; k < 4; k++) sum += bitfieldExtract(int(a), 8 * k, 8) * bitfieldExtract(int(b), 8 * k, 8);
    return sum;
}
#endif
