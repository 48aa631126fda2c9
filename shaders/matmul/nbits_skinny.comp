#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "nbits.glsl"
#include "nbits_a.glsl"

// Few rows: what counts is to read the weights once, with all lanes. A workgroup makes TM rows x TN LANES_N columns;
// LANES_K lanes that are neighbours in memory share the sums of each, and in a turn read WORDS words of TN columns,
// which lie in one block. What they come to is added up in shared memory, always in the same order.
const int LANES = LANES_N * LANES_K;
const int COLUMNS = TN * LANES_N;
const int SUMS = TM * TN;

shared float sums[SUMS * LANES];

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int lane_k = lane % LANES_K;
    int col_blocks = (n + COLUMNS - 1) / COLUMNS;
    int group = int(flat_group());
    int block_row = group / col_blocks * TM;
    if (block_row >= m) return;
    int block_col = group % col_blocks * COLUMNS;

    // Rows and columns past the end repeat the last one and are not stored.
    int row[TM];
    int column[TN];
    [[unroll]] for (int i = 0; i < TM; i++) row[i] = min(block_row + i, m - 1);
    [[unroll]] for (int j = 0; j < TN; j++) column[j] = min(block_col + j * LANES_N + lane / LANES_K, n - 1);
    float acc[SUMS];
    [[unroll]] for (int i = 0; i < SUMS; i++) acc[i] = 0.0;
    for (int word = lane_k * WORDS; word < row_words; word += LANES_K * WORDS) {
        uint packed[TN * WORDS];
        float middle[TN];
        float factor[TN];
        [[unroll]] for (int j = 0; j < TN; j++) {
            int at = column[j] * row_words + word;
            if (WORDS == 4) {
                uvec4 four = b4[at / 4];
                [[unroll]] for (int w = 0; w < WORDS; w++) packed[j * WORDS + w] = four[w];
            } else {
                packed[j] = b[at];
            }
            middle[j] = zero_at(column[j], block_of(word));
            factor[j] = scale_at(column[j], block_of(word));
        }
        [[unroll]] for (int w = 0; w < WORDS; w++) {
            [[unroll]] for (int quad = 0; quad < QUADS; quad++) {
                vec4 v[TN];
                [[unroll]] for (int j = 0; j < TN; j++) {
                    v[j] = weights_of(packed[j * WORDS + w], quad, middle[j], factor[j]);
                }
                [[unroll]] for (int i = 0; i < TM; i++) {
                    vec4 u = steps_of(row[i], (word + w) * VALUES + quad * 4);
                    [[unroll]] for (int j = 0; j < TN; j++) acc[i * TN + j] += dot(u, v[j]);
                }
            }
        }
    }
    [[unroll]] for (int i = 0; i < SUMS; i++) sums[i * LANES + lane] = acc[i];
    barrier();
    [[unroll]] for (int half_ = LANES_K / 2; half_ > 0; half_ /= 2) {
        if (lane_k < half_) {
            [[unroll]] for (int i = 0; i < SUMS; i++) sums[i * LANES + lane] += sums[i * LANES + lane + half_];
        }
        barrier();
    }
    for (int place = lane; place < TM * COLUMNS; place += LANES) {
        int lane_n = place % LANES_N;
        int j = place / LANES_N % TN;
        int i = place / COLUMNS;
        int col = block_col + j * LANES_N + lane_n;
        float sum = sums[(i * TN + j) * LANES + lane_n * LANES_K];
        if (block_row + i < m && col < n) store(block_row + i, col, sum);
    }
}
