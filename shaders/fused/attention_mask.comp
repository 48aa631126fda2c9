#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// Scores with the mask added, and -inf where a query does not see a key: an invocation for each.
void main() {
    uint i = flat_index();
    if (i >= total) return;
    uint key = i % keys;
    uint row = i / keys % queries;
    uint batch = i / keys / queries;
    float score = LOAD(scores, i);
#ifdef MASK
    uint base = batch / heads % mask_images * mask_image + batch % heads * mask_head;
    score += LOAD(mask, base + row * mask_row + key * mask_key);
#endif
    if (CAUSAL && key > row) score = uintBitsToFloat(0xFF800000u);
    STORE(scores, i, score);
}
