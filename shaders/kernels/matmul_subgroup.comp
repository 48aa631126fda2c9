#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#ifndef REDUCE
#define VEC4_RESIDUAL
#endif
#include "matmul.glsl"
#include "shuffled.glsl"

// Each invocation makes TM rows x TN columns. The subgroup loads TM elements of a column of a at once, a row per lane,
// and shuffles hand them out (shuffled.glsl). With VEC4 b and y have rows of whole vec4 and a lane takes four
// neighbouring columns at a time, vec4 one workgroup apart; without, the columns themselves are one workgroup apart.
// With REDUCE what the tile comes to along its rows or its columns is stored: [batch][tile, of a subgroup][row or
// column]; PRODUCT stores the results too.
const int ACCS = TM * TN;
const int LANE_ROWS = (TM + SUBGROUP - 1) / SUBGROUP;
const int RUN = VEC4 ? 4 : 1;

#ifdef REDUCE
#define SUBGROUP_LANES SUBGROUP
#include "addends.glsl"
#include "reduced.glsl"
#endif

void main() {
    int local = int(gl_WorkGroupSize.x);
    int col_blocks = (n + local * TN - 1) / (local * TN);
    int row_blocks = (m + TM - 1) / TM;
    int group = int(flat_group());
    if (group >= batches() * row_blocks * col_blocks) return;
    int lane = int(gl_SubgroupInvocationID);
    int first_col = group % col_blocks * local * TN + (int(gl_SubgroupID) * SUBGROUP + lane) * RUN;
    int first_row = group / col_blocks % row_blocks * TM;
    ivec3 origin = batch_origin(group / col_blocks / row_blocks);

    // Rows and columns past the end repeat the last one and are not stored.
    int a_at[LANE_ROWS];
    [[unroll]] for (int i = 0; i < LANE_ROWS; i++) {
        a_at[i] = origin.x + min(first_row + min(i * SUBGROUP + lane, TM - 1), m - 1) * a_row;
    }
    int cols[TN];
    [[unroll]] for (int j = 0; j < TN; j++) cols[j] = first_col + j / RUN * local * RUN + j % RUN;
    int b_at[TN];
    [[unroll]] for (int j = 0; j < TN; j++) b_at[j] = origin.y + min(cols[j], n - RUN) * b_col;
    float acc[ACCS];
    [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] = 0.0;
    int a_at_k = 0;
    int b_at_k = 0;
    // Read here: lavapipe reads push constants anew at each use in a loop.
    int depth = k, a_step = a_col, b_step = b_row;
    for (int ki = 0; ki < depth; ki++) {
        float v[TN];
        if (VEC4) {
            [[unroll]] for (int j = 0; j < TN; j += 4) {
                vec4 values = LOAD4(b4, (b_at[j] + b_at_k) / 4);
                [[unroll]] for (int i = 0; i < 4; i++) v[min(j + i, TN - 1)] = values[i];
            }
        } else {
            [[unroll]] for (int j = 0; j < TN; j++) v[j] = LOAD(b, b_at[j] + b_at_k);
        }
        float lane_rows[LANE_ROWS];
        [[unroll]] for (int i = 0; i < LANE_ROWS; i++) lane_rows[i] = LOAD(a, a_at[i] + a_at_k);
        [[unroll]] for (int i = 0; i < TM; i++) {
            float u = subgroupShuffle(lane_rows[i / SUBGROUP], i % SUBGROUP);
            [[unroll]] for (int j = 0; j < TN; j++) acc[i * TN + j] += u * v[j];
        }
        a_at_k += a_step;
        b_at_k += b_step;
    }
    float col_bias[TN];
    [[unroll]] for (int j = 0; j < TN; j++) col_bias[j] = bias_at(min(cols[j], n - 1), false);
#ifdef REDUCE
    int batch = group / col_blocks / row_blocks;
    int subgroups = int(gl_NumSubgroups);
    int part = (batch * col_blocks + group % col_blocks) * subgroups + int(gl_SubgroupID);
    [[unroll]] for (int reduction = 0; reduction < REDUCTIONS; reduction++) {
        float totals[ALONG_COLUMNS ? TN : TM];
        [[unroll]] for (int i = 0; i < (ALONG_COLUMNS ? TN : TM); i++) totals[i] = nothing(reduction);
        [[unroll]] for (int i = 0; i < TM; i++) {
            int in_m = min(first_row + i, m - 1);
            Channel channel = channel_of(in_m);
            [[unroll]] for (int j = 0; j < TN; j++) {
                int in_n = min(cols[j], n - 1);
                int to = origin.z + in_m * y_row + in_n * y_col;
                float value = finished_with(acc[i * TN + j], channel, col_bias[j], added_at(to, batch, in_m, in_n));
                int kept = ALONG_COLUMNS ? j : i;
                if (ALONG_COLUMNS ? first_row + i < m : cols[j] < n) {
                    totals[kept] = combined(reduction, totals[kept], term_of(reduction, value));
                }
#ifdef PRODUCT
                if (reduction == 0 && first_row + i < m && cols[j] < n) STORE(product, to, value);
#endif
            }
        }
        if (ALONG_COLUMNS) {
            int first_output = (TO_PARTS ? group / col_blocks : batch) * n;
            [[unroll]] for (int j = 0; j < TN; j++) {
                if (cols[j] < n) put(reduction, first_output + cols[j], totals[j], divisor);
            }
        } else {
            int first_output = (TO_PARTS ? part : batch) * m + first_row;
            float mine[LANE_ROWS];  // of every SUBGROUP-th row
            [[unroll]] for (int i = 0; i < TM; i++) {
                float total = over_lanes(reduction, totals[i]);
                if (lane == i % SUBGROUP) mine[i / SUBGROUP] = total;
            }
            [[unroll]] for (int i = 0; i < LANE_ROWS; i++) {
                int at = i * SUBGROUP + lane;
                if (at < TM && first_row + at < m) put(reduction, first_output + at, mine[i], divisor);
            }
        }
    }
#else
    [[unroll]] for (int i = 0; i < TM; i++) {
        int row = first_row + i;
        if (row < m) {
            Channel channel = channel_of(row);
            // Two loops: drivers inline the whole activation wherever it is called, in branches that are never taken
            // too.
            if (VEC4) {
                [[unroll]] for (int j = 0; j < TN; j += 4) {
                    if (cols[j] < n) {
                        int at = (origin.z + row * y_row + cols[j] * y_col) / 4;
                        vec4 values = residual4_at(at);
                        [[unroll]] for (int c = 0; c < 4; c++) {
                            int next = min(j + c, TN - 1);
                            values[c] = finished_with(acc[i * TN + next], channel, col_bias[next], values[c]);
                        }
                        STORE_Y4(y4, at, values);
                    }
                }
            } else {
                [[unroll]] for (int j = 0; j < TN; j++) {
                    if (cols[j] < n) store(origin.z, row, cols[j], acc[i * TN + j], channel, col_bias[j]);
                }
            }
        }
    }
#endif
}
