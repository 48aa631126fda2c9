#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "integer_matmul.glsl"
#include "shuffled.glsl"

// Each invocation makes TM rows x TN columns: words of four neighbouring ones, a workgroup apart. The subgroup loads a
// word of TM rows of a at once, a row per lane, and shuffles hand them out. Products are of floats, as in
// integer_tile.comp.
const int ACCS = TM * TN;
const int LANE_ROWS = (TM + SUBGROUP - 1) / SUBGROUP;
const int WORDS = TN / 4;
const int MOST_TERMS = 256;  // of at most 255 * 255 each, and whole words

// The four bytes from one on, of which those of the word behind the last one are 0.
uint joined(uint low, uint high, int at) {
    int shift = 8 * (at & 3);
    return (low >> shift) | ((high << 1) << (31 - shift));
}

void main() {
    int local = int(gl_WorkGroupSize.x);
    int col_blocks = (n + local * TN - 1) / (local * TN);
    int row_blocks = (m + TM - 1) / TM;
    int group = int(flat_group());
    if (group >= batches() * row_blocks * col_blocks) return;
    int lane = int(gl_SubgroupInvocationID);
    int first_col = group % col_blocks * local * TN + (int(gl_SubgroupID) * SUBGROUP + lane) * 4;
    int first_row = group / col_blocks % row_blocks * TM;
    int of_batch = group / col_blocks / row_blocks;
    ivec2 origin = batch_origin(of_batch);
    int depth = k, width = n;

    // Rows and columns past the end repeat others and are not stored.
    int a_at[LANE_ROWS];
    float a_zero[LANE_ROWS];
    [[unroll]] for (int i = 0; i < LANE_ROWS; i++) {
        int row = min(first_row + min(i * SUBGROUP + lane, TM - 1), m - 1);
        a_at[i] = origin.x + row * depth;
        a_zero[i] = float(row_axis(row).x);
    }
    int b_at[WORDS];
    float b_zero[TN];
    [[unroll]] for (int j = 0; j < WORDS; j++) b_at[j] = origin.y + min(first_col + j * local * 4, width - 1);
    [[unroll]] for (int j = 0; j < TN; j++) {
        b_zero[j] = float(column_axis(min(first_col + j / 4 * local * 4 + j % 4, width - 1)).x);
    }
    int a_last = origin.x + m * depth - 1 >> 2;
    int b_last = origin.y + depth * width - 1 >> 2;
    float acc[ACCS];
    int total[ACCS];
    [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] = 0.0;
    [[unroll]] for (int i = 0; i < ACCS; i++) total[i] = 0;
    for (int k0 = 0; k0 < depth; k0 += 4) {
        uint words[LANE_ROWS];
        [[unroll]] for (int i = 0; i < LANE_ROWS; i++) {
            int at = a_at[i] + k0;
            words[i] = a[at >> 2];
            if (!A_WORDS) words[i] = joined(words[i], a[min((at >> 2) + 1, a_last)], at);
            words[i] ^= flips(A_SIGNED);
        }
        [[unroll]] for (int e = 0; e < 4; e++) {
            int ki = k0 + e;
            float v[TN];
            [[unroll]] for (int j = 0; j < WORDS; j++) {
                int at = b_at[j] + min(ki, depth - 1) * width;
                uint bytes4 = b[at >> 2];
                if (!B_WORDS) bytes4 = joined(bytes4, b[min((at >> 2) + 1, b_last)], at);
                bytes4 ^= flips(B_SIGNED);
                [[unroll]] for (int i = 0; i < 4; i++) {
                    v[4 * j + i] = float(bitfieldExtract(int(bytes4), 8 * i, 8)) - b_zero[4 * j + i];
                }
            }
            float lane_rows[LANE_ROWS];
            [[unroll]] for (int i = 0; i < LANE_ROWS; i++) {
                float value = float(bitfieldExtract(int(words[i]), 8 * e, 8)) - a_zero[i];
                lane_rows[i] = A_WORDS || ki < depth ? value : 0.0;
            }
            [[unroll]] for (int i = 0; i < TM; i++) {
                float u = subgroupShuffle(lane_rows[i / SUBGROUP], i % SUBGROUP);
                [[unroll]] for (int j = 0; j < TN; j++) acc[i * TN + j] += u * v[j];
            }
        }
        if ((k0 + 4) % MOST_TERMS == 0) {
            [[unroll]] for (int i = 0; i < ACCS; i++) {
                total[i] += int(acc[i]);
                acc[i] = 0.0;
            }
        }
    }
    float column_scale[TN];
    [[unroll]] for (int j = 0; j < TN; j++) {
        column_scale[j] = scale_of(column_axis(min(first_col + j / 4 * local * 4 + j % 4, width - 1)));
    }
    ivec2 of_y = y_axis();
    [[unroll]] for (int i = 0; i < TM; i++) {
        int row = first_row + i;
        float row_scale = scale_of(row_axis(min(row, m - 1)));
        int at = (of_batch * m + row) * width + first_col;
        [[unroll]] for (int j = 0; j < TN; j += 4) {
            uint result[4];
            [[unroll]] for (int c = 0; c < 4; c++) {
                int e = i * TN + j + c;
                result[c] = finished(total[e] + int(acc[e]), row_scale * column_scale[j + c], of_y);
            }
            int ahead = j * local;
            if (RESULT != 0) {
                uint word = result[0] | (result[1] << 8) | (result[2] << 16) | (result[3] << 24);
                if (row < m && first_col + ahead < width) y[(at + ahead) >> 2] = word;
            } else {
                [[unroll]] for (int c = 0; c < 4; c++) {
                    if (row < m && first_col + ahead + c < width) y[at + ahead + c] = result[c];
                }
            }
        }
    }
}
