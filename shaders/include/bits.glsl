// Bool tensors are bytes, buffers are words: reading one byte of a word needs no 8-bit storage feature.

uint byte_of(uint word, uint index) {
    return (word >> (8u * (index & 3u))) & 0xFFu;
}
