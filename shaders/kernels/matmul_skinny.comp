#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "matmul.glsl"

// Few rows, so that what counts is to read b with all lanes, and once for TM rows: a workgroup makes TM rows x 4
// LANES_N columns, and LANES_K lanes share the sums of each. In a turn of the loop a lane reads four steps along k for
// four columns: along whichever dimension b has in a row its lanes are neighbours, by vec4 where its rows are whole
// vec4. What the lanes come to is added up in shared memory, always in the same order.
const int LANES = LANES_N * LANES_K;
const int COLUMNS = 4 * LANES_N;
const int OUTPUTS = TM * COLUMNS;
// Lanes that add up what those along k have for one output, and how many each of them adds.
const int SHARES = LANES >= 8 * OUTPUTS ? 8 : LANES > OUTPUTS ? LANES / OUTPUTS : 1;
const int SHARE = LANES_K / SHARES;

shared float sums[4 * TM * LANES];  // [row][of a lane's columns][lane]

// Step q of lane ``lane_k`` along k in a turn, and its column j: neighbours for a lane where they are read by vec4,
// else for the lanes.
int step_of(int lane_k, int q) { return B_BY_ROW && B_VEC4 ? lane_k * 4 + q : lane_k + q * LANES_K; }
int column_of(int lane_n, int j) { return !B_BY_ROW && B_VEC4 ? lane_n * 4 + j : lane_n + j * LANES_N; }

int lane_of(int lane_n, int lane_k) { return B_BY_ROW ? lane_n * LANES_K + lane_k : lane_k * LANES_N + lane_n; }

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int col_blocks = (n + COLUMNS - 1) / COLUMNS;
    int row_blocks = (m + TM - 1) / TM;
    int group = int(flat_group());
    if (group >= batches() * row_blocks * col_blocks) return;
    int block_col = group % col_blocks * COLUMNS;
    int block_row = group / col_blocks % row_blocks * TM;
    ivec3 origin = batch_origin(group / col_blocks / row_blocks);
    int lane_n = B_BY_ROW ? lane / LANES_K : lane % LANES_N;
    int lane_k = B_BY_ROW ? lane % LANES_K : lane / LANES_N;

    // Rows and columns past the end repeat the last one and are not stored.
    int a_at[TM];
    [[unroll]] for (int i = 0; i < TM; i++) a_at[i] = origin.x + min(block_row + i, m - 1) * a_row;
    int b_at[4];
    [[unroll]] for (int j = 0; j < 4; j++) {
        bool whole = !B_BY_ROW && B_VEC4;
        int column = block_col + column_of(lane_n, j);
        b_at[j] = origin.y + min(column, whole ? n - 4 + j : n - 1) * b_col;
    }
    vec4 acc[TM];
    [[unroll]] for (int i = 0; i < TM; i++) acc[i] = vec4(0.0);
    for (int first = 0; first < k; first += 4 * LANES_K) {
        vec4 v[4];  // of step q, by column
        bool inside[4];
        int step[4];
        [[unroll]] for (int q = 0; q < 4; q++) {
            step[q] = first + step_of(lane_k, q);
            inside[q] = step[q] < k;
            step[q] = inside[q] ? step[q] : 0;
        }
        if (B_VEC4 && B_BY_ROW) {
            [[unroll]] for (int j = 0; j < 4; j++) {
                vec4 values = LOAD4(b4, (b_at[j] + step[0]) / 4);
                [[unroll]] for (int q = 0; q < 4; q++) v[q][j] = values[q];
            }
        } else if (B_VEC4) {
            [[unroll]] for (int q = 0; q < 4; q++) v[q] = LOAD4(b4, (b_at[0] + step[q] * b_row) / 4);
        } else {
            [[unroll]] for (int q = 0; q < 4; q++) {
                [[unroll]] for (int j = 0; j < 4; j++) v[q][j] = LOAD(b, b_at[j] + step[q] * b_row);
            }
        }
        // Both, since what is read in place of a step past the end may be no number.
        [[unroll]] for (int q = 0; q < 4; q++) v[q] = inside[q] ? v[q] : vec4(0.0);
        [[unroll]] for (int i = 0; i < TM; i++) {
            vec4 u;
            if (A_VEC4) {
                u = LOAD4(a4, (a_at[i] + step[0]) / 4);
            } else {
                [[unroll]] for (int q = 0; q < 4; q++) u[q] = LOAD(a, a_at[i] + step[q] * a_col);
            }
            [[unroll]] for (int q = 0; q < 4; q++) acc[i] += (inside[q] ? u[q] : 0.0) * v[q];
        }
    }
    [[unroll]] for (int i = 0; i < TM; i++) {
        [[unroll]] for (int j = 0; j < 4; j++) sums[(i * 4 + j) * LANES + lane] = acc[i][j];
    }
    barrier();
    // Every share of an output adds up its own lanes, then one invocation what the shares came to.
    for (int index = lane; index < OUTPUTS * SHARES; index += LANES) {
        int place = index % OUTPUTS;
        int from = place / LANES_N * LANES;
        int lane_k = index / OUTPUTS * SHARE;
        float sum = 0.0;
        [[unroll]] for (int q = 0; q < SHARE; q++) sum += sums[from + lane_of(place % LANES_N, lane_k + q)];
        // Nobody else reads these.
        sums[from + lane_of(place % LANES_N, lane_k)] = sum;
    }
    barrier();
    for (int place = lane; place < OUTPUTS; place += LANES) {
        int from = place / LANES_N * LANES;
        float sum = 0.0;
        [[unroll]] for (int share = 0; share < SHARES; share++) {
            sum += sums[from + lane_of(place % LANES_N, share * SHARE)];
        }
        int row = block_row + place / COLUMNS;
        int column = block_col + column_of(place % LANES_N, place / LANES_N % 4);
        if (row >= m || column >= n) continue;
        // Slopes lie where the bias does.
        Channel channel = BIAS_BY_ROW ? channel_of(row) : Channel(0.0, slope_at(column, n));
        store(origin.z, row, column, sum, channel, bias_at(column, false));
    }
}
