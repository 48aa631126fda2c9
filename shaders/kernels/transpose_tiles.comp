#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#extension GL_EXT_control_flow_attributes : require

// Two dimensions exchanged by tiles in shared memory: y[b][i][j] = x[b][j][i], i of `rows` contiguous in x and j of
// `columns` contiguous in y, over what lies outside them, b, at any strides. A workgroup takes TILE x TILE elements: it
// has read all of them before it writes. X_VEC4, Y_VEC4: four neighbours at once, of which all strides are multiples.
// A row of the tile is a word longer than it is, so that what is read down a column lies in other banks.

const uint LANES = gl_WorkGroupSize.x;
const uint FOURS = TILE / 4;

shared VALUE tile[TILE * (TILE + 1)];

#ifdef DTYPE_u16
#define FOUR uvec2
#define PART(four, k) (((four)[(k) >> 1] >> ((k) % 2 * 16)) & 0xFFFFu)
#define JOIN(a, b, c, d) uvec2((a) | (b) << 16, (c) | (d) << 16)
#else
#define FOUR ELEM4
#define PART(four, k) (four)[k]
#define JOIN(a, b, c, d) ELEM4(a, b, c, d)
#endif

void main() {
    uint group = flat_group();
    if (group >= groups) return;
    uint by_columns = (columns + TILE - 1) / TILE;
    uint of_batch = (rows + TILE - 1) / TILE * by_columns;
    uint batch = group / of_batch;
    uint part = group - batch * of_batch;
    uint i0 = part / by_columns * TILE;
    uint j0 = (part - part / by_columns * by_columns) * TILE;
    int from = int(i0) + int(j0) * x_column;
    int to = int(i0) * y_row + int(j0);
    for (uint d = RANK; d > 0; d--) {
        uint q = d > 1 ? batch / n[d - 1] : 0u;
        int b = int(batch - q * n[d - 1]);
        from += b * xs[d - 1];
        to += b * ys[d - 1];
        batch = q;
    }
    uint lane = gl_LocalInvocationIndex;
    uint most_i = min(rows - i0, TILE);
    uint most_j = min(columns - j0, TILE);

    if (X_VEC4) {
        FOUR held[TURNS / 4];
        [[unroll]] for (uint k = 0; k < TURNS / 4; k++) {
            uint at = lane + k * LANES;
            uint j = at / FOURS, i = at % FOURS * 4;
            if (j < most_j && i < most_i) held[k] = LOAD4(x4, (from + int(j) * x_column + int(i)) / 4);
        }
        [[unroll]] for (uint k = 0; k < TURNS / 4; k++) {
            uint at = lane + k * LANES;
            uint to_tile = at / FOURS * (TILE + 1) + at % FOURS * 4;
            [[unroll]] for (uint c = 0; c < 4; c++) tile[to_tile + c] = PART(held[k], c);
        }
    } else {
        VALUE held[TURNS];
        [[unroll]] for (uint k = 0; k < TURNS; k++) {
            uint at = lane + k * LANES;
            uint j = at / TILE, i = at % TILE;
            if (j < most_j && i < most_i) held[k] = LOAD(x, from + int(j) * x_column + int(i));
        }
        [[unroll]] for (uint k = 0; k < TURNS; k++) {
            uint at = lane + k * LANES;
            tile[at / TILE * (TILE + 1) + at % TILE] = held[k];
        }
    }
    barrier();
    if (Y_VEC4) {
        [[unroll]] for (uint k = 0; k < TURNS / 4; k++) {
            uint at = lane + k * LANES;
            uint i = at / FOURS, j = at % FOURS * 4;
            uint of = j * (TILE + 1) + i;
            FOUR made = JOIN(tile[of], tile[of + TILE + 1], tile[of + 2 * (TILE + 1)], tile[of + 3 * (TILE + 1)]);
            if (i < most_i && j < most_j) STORE4(y4, (to + int(i) * y_row + int(j)) / 4, made);
        }
    } else {
        [[unroll]] for (uint k = 0; k < TURNS; k++) {
            uint at = lane + k * LANES;
            uint i = at / TILE, j = at % TILE;
            if (i < most_i && j < most_j) STORE(y, to + int(i) * y_row + int(j), tile[j * (TILE + 1) + i]);
        }
    }
}
