#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "common.glsl"
#include "math.glsl"
#include "reduction.glsl"

// A workgroup makes BM rows of the output of one head from tiles of BN keys, whose scores never leave it. Each row keeps
// its largest score so far and the sum of exponentials relative to that; where a tile has a larger one, what was added
// up is scaled down (Milakov and Gimelshein 2018; Dao et al. 2022). Local size is (BM / TM) * LANES_N: an invocation
// holds TM rows of BN / LANES_N scores, and TM rows of every LANES_N-th vec4 of the output. Its rows are blocks of four
// that lie BM / (TM / 4) apart, so that shared memory is read as vec4. The queries stay in shared memory, keys pass
// through it BK of their elements at a time, values VK rows at a time.
const int TM4 = TM / 4;
const int LANES_M = BM / TM;
const int LANES = LANES_M * LANES_N;
const int TN4 = BN / (4 * LANES_N);
const int TC4 = (VALUE4S + LANES_N - 1) / LANES_N;
const int ROWS4 = BM / 4;
// One vec4 more than a row has: lanes that transpose keys store to different banks.
const int KEYS_ROW = BN / 4 + 1;
const int KEYS_STAGE = BK * KEYS_ROW;
const int VALUES_STAGE = VK * VALUE4S;
const int STAGE = KEYS_STAGE > VALUES_STAGE ? KEYS_STAGE : VALUES_STAGE;

shared vec4 query_tile[HEAD * ROWS4];  // [element][row]
shared vec4 weights[BN * ROWS4];       // [key][row]
shared vec4 stage[STAGE];              // keys as [element][key], values as [key][element]
shared vec4 of_lanes[LANES_N * ROWS4];

const int Q_WIDE = Q_VEC4 ? 4 : 1;
const int K_WIDE = K_VEC4 ? 4 : 1;

void load_queries(int lane, int base, int first_row) {
    int line = HEAD / Q_WIDE;
    for (int i = lane; i < BM * line; i += LANES) {
        int row = i / line;
        int element = i % line * Q_WIDE;
        bool ok = first_row + row < queries && element < head_size;
        int at = ok ? base + (first_row + row) * head_size + element : 0;
        if (Q_VEC4) {
            vec4 v = ok ? LOAD4(q4, at / 4) : vec4(0.0);
            [[unroll]] for (int c = 0; c < 4; c++) query_tile[(element + c) * ROWS4 + row / 4][row % 4] = v[c];
        } else {
            query_tile[element * ROWS4 + row / 4][row % 4] = ok ? LOAD(q, at) : 0.0;
        }
    }
}

// Elements of BN keys, from one on, neighbours read by neighbouring lanes.
void load_keys(int lane, int base, int first_key, int first_element) {
    int line = (K_BY_COL ? BN : BK) / K_WIDE;
    for (int i = lane; i < BN * BK / K_WIDE; i += LANES) {
        int along = i % line * K_WIDE;
        int key = K_BY_COL ? along : i / line;
        int element = K_BY_COL ? i / line : along;
        bool ok = first_key + key < keys && first_element + element < head_size;
        int in_k = K_BY_COL ? (first_element + element) * keys + first_key + key
                            : (first_key + key) * head_size + first_element + element;
        int at = ok ? base + in_k : 0;
        if (K_VEC4) {
            vec4 v = ok ? LOAD4(k4, at / 4) : vec4(0.0);
            if (K_BY_COL) {
                stage[element * KEYS_ROW + key / 4] = v;
            } else {
                [[unroll]] for (int c = 0; c < 4; c++) stage[(element + c) * KEYS_ROW + key / 4][key % 4] = v[c];
            }
        } else {
            stage[element * KEYS_ROW + key / 4][key % 4] = ok ? LOAD(k, at) : 0.0;
        }
    }
}

void load_values(int lane, int base, int first_key) {
    for (int i = lane; i < VALUES_STAGE; i += LANES) {
        int key = first_key + i / VALUE4S;
        int element = i % VALUE4S * 4;
        bool ok = key < keys;
        int at = ok ? base + key * value_size + element : 0;
        vec4 values = vec4(0.0);
        if (V_VEC4) {
            if (ok) values = LOAD4(v4, at / 4);
        } else {
            [[unroll]] for (int c = 0; c < 4; c++) {
                if (ok && element + c < value_size) values[c] = LOAD(v, at + c);
            }
        }
        stage[i] = values;
    }
}

vec4 vec4_exp_below(vec4 v) { return vec4(exp_below(v.x), exp_below(v.y), exp_below(v.z), exp_below(v.w)); }

// What scores are relative to: the largest, or anything where all are -inf and their exponentials are 0.
vec4 relative_to(vec4 peak) { return mix(peak, vec4(0.0), equal(peak, vec4(LOWEST))); }

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int row_blocks = (queries + BM - 1) / BM;
    int group = int(flat_group());
    int batch = group / row_blocks;
    if (batch >= images * heads) return;
    int first_row = group % row_blocks * BM;
    int lane_col = lane % LANES_N;
    int lane_row = lane / LANES_N;
    int of_keys = batch / heads * (heads / heads_of_keys) + batch % heads / heads_of_keys;
    int k_base = of_keys * keys * head_size;
    int v_base = of_keys * keys * value_size;
#ifdef MASK
    int mask_base = batch / heads % mask_images * mask_image + batch % heads * mask_head;
#endif
    load_queries(lane, batch * queries * head_size, first_row);

    vec4 acc[TM * TC4];
    [[unroll]] for (int i = 0; i < TM * TC4; i++) acc[i] = vec4(0.0);
    vec4 peak[TM4];
    vec4 total[TM4];
    [[unroll]] for (int i = 0; i < TM4; i++) {
        peak[i] = vec4(LOWEST);
        total[i] = vec4(0.0);
    }
    int seen = CAUSAL ? min(keys, first_row + BM) : keys;
    for (int first_key = 0; first_key < seen; first_key += BN) {
        vec4 s[TM * TN4];
        [[unroll]] for (int i = 0; i < TM * TN4; i++) s[i] = vec4(0.0);
        for (int first = 0; first < HEAD; first += BK) {
            barrier();
            load_keys(lane, k_base, first_key, first);
            barrier();
            [[unroll]] for (int e = 0; e < BK; e++) {
                vec4 of_key[TN4];
                [[unroll]] for (int j = 0; j < TN4; j++) of_key[j] = stage[e * KEYS_ROW + j * LANES_N + lane_col];
                [[unroll]] for (int i = 0; i < TM4; i++) {
                    vec4 u = query_tile[(first + e) * ROWS4 + i * LANES_M + lane_row];
                    [[unroll]] for (int r = 0; r < 4; r++) {
                        [[unroll]] for (int j = 0; j < TN4; j++) s[(i * 4 + r) * TN4 + j] += u[r] * of_key[j];
                    }
                }
            }
        }
        [[unroll]] for (int i = 0; i < TM4; i++) {
            vec4 top = vec4(LOWEST);
            [[unroll]] for (int r = 0; r < 4; r++) {
                int row = first_row + (i * LANES_M + lane_row) * 4 + r;
                [[unroll]] for (int j = 0; j < TN4; j++) {
                    [[unroll]] for (int c = 0; c < 4; c++) {
                        int key = first_key + (j * LANES_N + lane_col) * 4 + c;
                        float score = s[(i * 4 + r) * TN4 + j][c] * scale;
#ifdef MASK
                        score += LOAD(mask, mask_base + min(row, queries - 1) * mask_row + min(key, keys - 1) * mask_key);
#endif
                        if (key >= keys || (CAUSAL && key > row)) score = LOWEST;
                        s[(i * 4 + r) * TN4 + j][c] = score;
                        top[r] = larger(top[r], score);
                    }
                }
            }
            of_lanes[lane_col * ROWS4 + i * LANES_M + lane_row] = top;
        }
        barrier();
        [[unroll]] for (int i = 0; i < TM4; i++) {
            vec4 top = peak[i];
            for (int n = 0; n < LANES_N; n++) top = larger(top, of_lanes[n * ROWS4 + i * LANES_M + lane_row]);
            vec4 base = relative_to(top);
            vec4 kept = vec4_exp_below(peak[i] - base);
            peak[i] = top;
            total[i] *= kept;
            [[unroll]] for (int r = 0; r < 4; r++) {
                [[unroll]] for (int j = 0; j < TC4; j++) acc[(i * 4 + r) * TC4 + j] *= kept[r];
                [[unroll]] for (int j = 0; j < TN4; j++) {
                    vec4 e = vec4_exp_below(s[(i * 4 + r) * TN4 + j] - base[r]);
                    s[(i * 4 + r) * TN4 + j] = e;
                    total[i][r] += (e.x + e.y) + (e.z + e.w);
                }
            }
            [[unroll]] for (int j = 0; j < TN4; j++) {
                [[unroll]] for (int c = 0; c < 4; c++) {
                    vec4 of_rows;
                    [[unroll]] for (int r = 0; r < 4; r++) of_rows[r] = s[(i * 4 + r) * TN4 + j][c];
                    weights[((j * LANES_N + lane_col) * 4 + c) * ROWS4 + i * LANES_M + lane_row] = of_rows;
                }
            }
        }
        int tile_keys = min(BN, seen - first_key);
        for (int first = 0; first < tile_keys; first += VK) {
            barrier();
            load_values(lane, v_base, first_key + first);
            barrier();
            [[unroll]] for (int e = 0; e < VK; e++) {
                vec4 of_value[TC4];
                [[unroll]] for (int j = 0; j < TC4; j++) {
                    of_value[j] = stage[e * VALUE4S + min(j * LANES_N + lane_col, VALUE4S - 1)];
                }
                [[unroll]] for (int i = 0; i < TM4; i++) {
                    vec4 u = weights[(first + e) * ROWS4 + i * LANES_M + lane_row];
                    [[unroll]] for (int r = 0; r < 4; r++) {
                        [[unroll]] for (int j = 0; j < TC4; j++) acc[(i * 4 + r) * TC4 + j] += u[r] * of_value[j];
                    }
                }
            }
        }
    }
    barrier();
    [[unroll]] for (int i = 0; i < TM4; i++) of_lanes[lane_col * ROWS4 + i * LANES_M + lane_row] = total[i];
    barrier();
    [[unroll]] for (int i = 0; i < TM4; i++) {
        vec4 sum = vec4(0.0);
        for (int n = 0; n < LANES_N; n++) sum += of_lanes[n * ROWS4 + i * LANES_M + lane_row];
        [[unroll]] for (int r = 0; r < 4; r++) {
            int row = first_row + (i * LANES_M + lane_row) * 4 + r;
            if (row < queries) {
                float nothing = ZERO_ROWS ? 0.0 : uintBitsToFloat(NAN_BITS);
                float factor = peak[i][r] == LOWEST ? nothing : 1.0 / sum[r];
                int at = (batch * queries + row) * value_size;
                [[unroll]] for (int j = 0; j < TC4; j++) {
                    int element = (j * LANES_N + lane_col) * 4;
                    vec4 result = acc[(i * 4 + r) * TC4 + j] * factor;
                    if (V_VEC4) {
                        if (element < value_size) STORE4(y4, (at + element) / 4, result);
                    } else {
                        [[unroll]] for (int c = 0; c < 4; c++) {
                            if (element + c < value_size) STORE(y, at + element + c, result[c]);
                        }
                    }
                }
            }
        }
    }
}
