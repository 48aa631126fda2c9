#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "common.glsl"
#include "math.glsl"
#include "reduction.glsl"
#include "rounded.glsl"

// attention_flash by cooperative matrices of MM x MN, MK deep. Each subgroup of a workgroup has SM of its BM queries for
// itself: their elements as matrices in registers, their results too, and SM lines of shared memory. There pass, one after
// the other, the queries, the scores of BN keys in f32, the weights that lanes make of these, as elements, and in the end
// the results. Keys and values of a step are shared by all subgroups. A line is one vector longer than it needs to be:
// neighbouring lines begin in different banks. Sizes divide each other: vkconv/ops/fused/attention_cooperative.py.
const int LANES = BM / SM * SUBGROUP;
const int ROWS = SM / MM;  // matrices of a subgroup, down
const int DEPTHS = HEAD / MK;
const int COLUMNS = VALUES / MN;
const int LINE = BN / 4 + 1;
// K_BY_COL is 0 or 1, since no length of a shared array should be chosen by a bool (quirk adreno-840-842.19).
const int K_VEC8S = (K_BY_COL * BN + (1 - K_BY_COL) * HEAD) / 8;
const int K_LINE = K_VEC8S + 1;
const int K_COUNT = BN * HEAD / 8;
const int V_VEC8S = VALUES / 8;
const int V_LINE = V_VEC8S + 1;
const int V_COUNT = BN * V_VEC8S;
const int K_BASE = BM * LINE;
const int V_BASE = K_BASE + (K_BY_COL * HEAD + (1 - K_BY_COL) * BN) * K_LINE;
const int SLOTS = V_BASE + BN * V_LINE;
// Elements of queries, and columns of results, that the lines of a subgroup take at a time.
const int Q_PART = HEAD < 2 * BN ? HEAD : 2 * BN;
const int OUT_PART = VALUES < BN ? VALUES : BN;
// ROW_LANES neighbouring lanes share a row of scores, of which each has QUADS times four keys, and do so for TURNS rows.
const int TURNS = SM * ROW_LANES / SUBGROUP;
const int QUADS = BN / (4 * ROW_LANES);

shared uvec4 tiles[SLOTS];
shared float factors[BM];  // of rows

#define SUMS coopmat<float, gl_ScopeSubgroup, MM, MN, gl_MatrixUseAccumulator>
#define FACTOR_A coopmat<float16_t, gl_ScopeSubgroup, MM, MK, gl_MatrixUseA>
#define FACTOR_B coopmat<float16_t, gl_ScopeSubgroup, MK, MN, gl_MatrixUseB>

// Defines name(wide, at, valid): the 8-wide vector from element ``at`` of an operand on, of which the first ``valid`` are
// there and the rest are 0; ``wide`` where either all or none are, at a whole vector.
#define LOAD8(name, operand, operand8)                                         \
    uvec4 name(bool wide, int at, int valid) {                                 \
        uvec4 vec8 = uvec4(0u);                                                \
        if (wide) {                                                            \
            if (valid > 0) vec8 = operand8[at / 8];                            \
        } else {                                                               \
            [[unroll]] for (int e = 0; e < 8; e++) {                           \
                if (e < valid) insert_bits(vec8, e, BITS_AT(operand, at + e)); \
            }                                                                  \
        }                                                                      \
        return vec8;                                                           \
    }
LOAD8(load8_of_q, q, q8)
LOAD8(load8_of_k, k, k8)
LOAD8(load8_of_v, v, v8)

void load_keys(int lane, int base, int first_key) {
    [[unroll]] for (int i = 0; i < (K_COUNT + LANES - 1) / LANES; i++) {
        int index = lane + i * LANES;
        if (K_COUNT % LANES == 0 || index < K_COUNT) {
            int line = index / K_VEC8S;
            int along = index % K_VEC8S * 8;
            int key = first_key + (K_BY_COL == 1 ? along : line);
            int element = K_BY_COL == 1 ? line : along;
            int valid = K_BY_COL == 1 ? (element < head_size ? keys - key : 0) : (key < keys ? head_size - element : 0);
            int at = base + (K_BY_COL == 1 ? element * keys + key : key * head_size + element);
            tiles[K_BASE + line * K_LINE + along / 8] = load8_of_k(K_WIDE, at, valid);
        }
    }
}

void load_values(int lane, int base, int first_key) {
    [[unroll]] for (int i = 0; i < (V_COUNT + LANES - 1) / LANES; i++) {
        int index = lane + i * LANES;
        if (V_COUNT % LANES == 0 || index < V_COUNT) {
            int key = first_key + index / V_VEC8S;
            int element = index % V_VEC8S * 8;
            int valid = key < keys ? value_size - element : 0;
            int to = V_BASE + index / V_VEC8S * V_LINE + element / 8;
            tiles[to] = load8_of_v(V_WIDE, base + key * value_size + element, valid);
        }
    }
}

vec4 vec4_exp_below(vec4 v) { return vec4(exp_below(v.x), exp_below(v.y), exp_below(v.z), exp_below(v.w)); }

// Of the lanes that share a row.
float row_larger(float value) {
    [[unroll]] for (uint apart = 1; apart < ROW_LANES; apart *= 2) value = larger(value, subgroupShuffleXor(value, apart));
    return value;
}
float row_sum(float value) {
    [[unroll]] for (uint apart = 1; apart < ROW_LANES; apart *= 2) value += subgroupShuffleXor(value, apart);
    return value;
}

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int of_subgroup = int(gl_SubgroupInvocationID);
    int row_blocks = (queries + BM - 1) / BM;
    int group = int(flat_group());
    int batch = group / row_blocks;
    if (batch >= images * heads) return;
    int block_row = group % row_blocks * BM;
    int in_block = int(gl_SubgroupID) * SM;
    int lines = in_block * LINE;
    int of_keys = batch / heads * (heads / heads_of_keys) + batch % heads / heads_of_keys;
    int k_base = of_keys * keys * head_size;
    int v_base = of_keys * keys * value_size;
    // A lane's rows among those of the subgroup, and the first key of its part of them.
    int lane_row = of_subgroup / ROW_LANES * TURNS;
    int lane_key = of_subgroup % ROW_LANES * 4;
#ifdef MASK
    int mask_base = batch / heads % mask_images * mask_image + batch % heads * mask_head;
#endif

    FACTOR_A of_q[ROWS * DEPTHS];
    [[unroll]] for (int part = 0; part < HEAD; part += Q_PART) {
        int q_base = batch * queries * head_size;
        int count = SM * Q_PART / 8;
        [[unroll]] for (int i = 0; i < (SM * Q_PART / 8 + SUBGROUP - 1) / SUBGROUP; i++) {
            int index = of_subgroup + i * SUBGROUP;
            int row = index / (Q_PART / 8);
            int element = index % (Q_PART / 8) * 8;
            int valid = block_row + in_block + row < queries ? head_size - part - element : 0;
            int at = q_base + (block_row + in_block + row) * head_size + part + element;
            if (index < count) tiles[lines + row * LINE + element / 8] = load8_of_q(Q_WIDE, at, valid);
        }
        subgroupBarrier();
        [[unroll]] for (int d = 0; d < DEPTHS; d++) {
            if (d * MK >= part && d * MK < part + Q_PART) {
                [[unroll]] for (int i = 0; i < ROWS; i++) {
                    coopMatLoad(of_q[i * DEPTHS + d], tiles, lines + i * MM * LINE + (d * MK - part) / 8, LINE,
                                gl_CooperativeMatrixLayoutRowMajor);
                }
            }
        }
        subgroupBarrier();
    }

    SUMS acc[ROWS * COLUMNS];
    [[unroll]] for (int i = 0; i < ROWS * COLUMNS; i++) acc[i] = SUMS(0.0);
    float peak[TURNS];
    float total[TURNS];
    [[unroll]] for (int t = 0; t < TURNS; t++) {
        peak[t] = LOWEST;
        total[t] = 0.0;
    }
    int seen = CAUSAL ? min(keys, block_row + BM) : keys;
    for (int first_key = 0; first_key < seen; first_key += BN) {
        load_keys(lane, k_base, first_key);
        load_values(lane, v_base, first_key);
        // Long before they are needed.
#ifdef MASK
        uvec2 of_mask[TURNS * QUADS];
        [[unroll]] for (int t = 0; t < TURNS; t++) {
            int line = mask_base + min(block_row + in_block + lane_row + t, queries - 1) * mask_row;
            [[unroll]] for (int j = 0; j < QUADS; j++) {
                int key = first_key + j * 4 * ROW_LANES + lane_key;
                uint bits[4];
                [[unroll]] for (int c = 0; c < 4; c++) bits[c] = BITS_AT(mask, line + min(key + c, keys - 1) * mask_key);
                of_mask[t * QUADS + j] = uvec2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
            }
        }
#endif
        barrier();
        int live = seen - first_key;
        [[unroll]] for (int j = 0; j < BN / MN; j++) {
            if (j * MN < live) {
                SUMS sums[ROWS];
                [[unroll]] for (int i = 0; i < ROWS; i++) sums[i] = SUMS(0.0);
                [[unroll]] for (int d = 0; d < DEPTHS; d++) {
                    FACTOR_B of_k;
                    int at = K_BY_COL == 1 ? d * MK * K_LINE + j * MN / 8 : j * MN * K_LINE + d * MK / 8;
                    coopMatLoad(of_k, tiles, K_BASE + at, K_LINE, 1 - K_BY_COL);
                    [[unroll]] for (int i = 0; i < ROWS; i++) {
                        sums[i] = coopMatMulAdd(of_q[i * DEPTHS + d], of_k, sums[i]);
                    }
                }
                [[unroll]] for (int i = 0; i < ROWS; i++) {
                    coopMatStore(sums[i], tiles, lines + i * MM * LINE + j * (MN / 4), LINE,
                                 gl_CooperativeMatrixLayoutRowMajor);
                }
            }
        }
        subgroupBarrier();
        vec4 s[TURNS * QUADS];
        [[unroll]] for (int t = 0; t < TURNS; t++) {
            int row = block_row + in_block + lane_row + t;
            [[unroll]] for (int j = 0; j < QUADS; j++) {
                int in_line = j * 4 * ROW_LANES + lane_key;
                vec4 score = uintBitsToFloat(tiles[lines + (lane_row + t) * LINE + in_line / 4]) * scale;
#ifdef MASK
                score += from_bits4(of_mask[t * QUADS + j]);
#endif
                [[unroll]] for (int c = 0; c < 4; c++) {
                    int key = first_key + in_line + c;
                    if (key >= keys || (CAUSAL && key > row)) score[c] = LOWEST;
                }
                s[t * QUADS + j] = score;
            }
        }
        subgroupBarrier();
        [[unroll]] for (int t = 0; t < TURNS; t++) {
            vec4 tops = vec4(LOWEST);
            [[unroll]] for (int j = 0; j < QUADS; j++) tops = larger(tops, s[t * QUADS + j]);
            float top = larger(peak[t], row_larger(larger(larger(tops.x, tops.y), larger(tops.z, tops.w))));
            // Scores are relative to the largest, or to anything where all are -inf and their exponentials are 0.
            float base = top == LOWEST ? 0.0 : top;
            float kept = exp_below(peak[t] - base);
            peak[t] = top;
            vec4 sums = vec4(0.0);
            [[unroll]] for (int j = 0; j < QUADS; j++) {
                vec4 e = vec4_exp_below(s[t * QUADS + j] - base);
                sums += e;
                int in_line = j * 4 * ROW_LANES + lane_key;
                int to = lines + (lane_row + t) * LINE + in_line / 8;
                uvec2 bits = rounded4(e);
                tiles[to][in_line % 8 / 2] = bits.x;
                tiles[to][in_line % 8 / 2 + 1] = bits.y;
            }
            total[t] = total[t] * kept + ((sums.x + sums.y) + (sums.z + sums.w));
            if (lane_key == 0) factors[in_block + lane_row + t] = kept;
        }
        subgroupBarrier();
        if (first_key > 0) {
            [[unroll]] for (int i = 0; i < ROWS; i++) {
                SUMS kept;  // all columns alike
                coopMatLoad(kept, factors, in_block + i * MM, 0, gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (int c = 0; c < COLUMNS; c++) acc[i * COLUMNS + c] = acc[i * COLUMNS + c] * kept;
            }
        }
        [[unroll]] for (int d = 0; d < BN / MK; d++) {
            if (d * MK < live) {
                FACTOR_A of_weights[ROWS];
                [[unroll]] for (int i = 0; i < ROWS; i++) {
                    coopMatLoad(of_weights[i], tiles, lines + i * MM * LINE + d * MK / 8, LINE,
                                gl_CooperativeMatrixLayoutRowMajor);
                }
                [[unroll]] for (int c = 0; c < COLUMNS; c++) {
                    FACTOR_B of_v;
                    coopMatLoad(of_v, tiles, V_BASE + d * MK * V_LINE + c * MN / 8, V_LINE,
                                gl_CooperativeMatrixLayoutRowMajor);
                    [[unroll]] for (int i = 0; i < ROWS; i++) {
                        acc[i * COLUMNS + c] = coopMatMulAdd(of_weights[i], of_v, acc[i * COLUMNS + c]);
                    }
                }
            }
        }
        barrier();
    }

    [[unroll]] for (int t = 0; t < TURNS; t++) {
        float sum = row_sum(total[t]);
        float nothing = ZERO_ROWS ? 0.0 : uintBitsToFloat(NAN_BITS);
        if (lane_key == 0) factors[in_block + lane_row + t] = peak[t] == LOWEST ? nothing : 1.0 / sum;
    }
    [[unroll]] for (int part = 0; part < VALUES; part += OUT_PART) {
        [[unroll]] for (int c = 0; c < COLUMNS; c++) {
            if (c * MN >= part && c * MN < part + OUT_PART) {
                [[unroll]] for (int i = 0; i < ROWS; i++) {
                    coopMatStore(acc[i * COLUMNS + c], tiles, lines + i * MM * LINE + (c * MN - part) / 4, LINE,
                                 gl_CooperativeMatrixLayoutRowMajor);
                }
            }
        }
        subgroupBarrier();
        for (int index = of_subgroup; index < SM * OUT_PART / 8; index += SUBGROUP) {
            int row = index / (OUT_PART / 8);
            int column = index % (OUT_PART / 8) * 8;
            int to_row = block_row + in_block + row;
            int valid = to_row < queries ? value_size - part - column : 0;
            if (valid > 0) {
                int from = lines + row * LINE + column / 4;
                float factor = factors[in_block + row];
                vec4 low = uintBitsToFloat(tiles[from]) * factor;
                vec4 high = uintBitsToFloat(tiles[from + 1]) * factor;
                int to = (batch * queries + to_row) * value_size + part + column;
                if (V_WIDE) {
                    y8[to / 8] = rounded8(low, high);
                } else {
                    [[unroll]] for (int e = 0; e < 8; e++) {
                        if (e < valid) STORE(y, to + e, e < 4 ? low[e % 4] : high[e % 4]);
                    }
                }
            }
        }
        subgroupBarrier();
    }
}
