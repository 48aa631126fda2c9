#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#ifdef CLUSTERS
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#endif
#include "common.glsl"
#include "math.glsl"
#include "reduction.glsl"

// attention_flash without scores in shared memory. A cluster of LANES neighbouring lanes of a subgroup has ROWS queries,
// of each lane every LANES-th vec4 of their elements and of their results in registers; with one lane nobody meets.
// Keys and values pass through shared memory BN at a time, and all clusters read the same ones. Of CHUNK keys at a time
// a lane adds up its part of all scores of the cluster; by shuffles the lanes exchange halves, until each has PART
// scores of one query as whole sums, for which it alone has mask, exponentials and their sum. Shuffles hand the weights
// back to all. What a lane has at i is score i ^ member * PART of the cluster, [query][key]: so each gives away the upper
// half and keeps the lower, and what is at i comes from the lane i / PART apart, without a choice between registers.
// Local size is BM / ROWS * LANES, a multiple of BN.
const int CHUNK = 8;
const int LOCAL = BM / ROWS * LANES;
const int OF_HEAD = (HEAD4S + LANES - 1) / LANES;
const int OF_VALUE = (VALUE4S + LANES - 1) / LANES;
const int HEAD_LINE = OF_HEAD * LANES;
const int VALUE_LINE = OF_VALUE * LANES;
const int SCORES = ROWS * CHUNK;
const int PART = SCORES / LANES;
const int SHARING = LANES / ROWS;  // lanes with scores of the same query
const int KEY_LOADS = (BN * HEAD_LINE + LOCAL - 1) / LOCAL;
const int VALUE_LOADS = (BN * VALUE_LINE + LOCAL - 1) / LOCAL;

shared vec4 key_tile[BN * HEAD_LINE];
shared vec4 value_tile[BN * VALUE_LINE];
#ifdef MASK
const int MASK_LOADS = BM * BN / LOCAL;
const int MASK_LINE = BN + 1;  // odd: lanes with neighbouring queries read different banks
shared float mask_tile[BM * MASK_LINE];
#endif

int key_of(int i) { return K_BY_COL ? i % BN : i / HEAD_LINE; }
int vec4_of_key(int i) { return K_BY_COL ? i / BN : i % HEAD_LINE; }

// Neighbouring lanes read neighbours in memory: elements of a key, or keys.
vec4 load_key(int i, int base, int first_key) {
    int key = first_key + key_of(i);
    int part = vec4_of_key(i);
    vec4 v = vec4(0.0);
    if (key < keys && part < HEAD4S) {
        if (K_VEC4) {
            v = LOAD4(k4, base / 4 + key * HEAD4S + part);
        } else {
            [[unroll]] for (int c = 0; c < 4; c++) {
                int element = part * 4 + c;
                if (element < head_size) v[c] = LOAD(k, base + (K_BY_COL ? element * keys + key : key * head_size + element));
            }
        }
    }
    return v;
}

vec4 load_value(int i, int base, int first_key) {
    int key = first_key + i / VALUE_LINE;
    int part = i % VALUE_LINE;
    vec4 values = vec4(0.0);
    if (key < keys && part < VALUE4S) {
        if (V_VEC4) {
            values = LOAD4(v4, base / 4 + key * VALUE4S + part);
        } else {
            [[unroll]] for (int c = 0; c < 4; c++) {
                if (part * 4 + c < value_size) values[c] = LOAD(v, base + key * value_size + part * 4 + c);
            }
        }
    }
    return values;
}

#ifdef CLUSTERS
#define FROM_MEMBER(value, apart) ((apart) == 0 ? value : subgroupShuffleXor(value, uint(apart)))
// Lanes ``apart`` from each other give the upper of ``left`` * 2 sums and add to the lower what they get.
#define HALVE(apart, left) \
    [[unroll]] for (int i = 0; i < (left); i++) s[i] += subgroupShuffleXor(s[i + (left)], uint(apart));
#else
#define FROM_MEMBER(value, apart) (value)
#endif

// A tile from one key on, into registers.
#define FETCH_KEYS(from)                                                                                    \
    [[unroll]] for (int n = 0; n < KEY_LOADS; n++) next_keys[n] = load_key(n * LOCAL + lane, k_base, from); \
    [[unroll]] for (int n = 0; n < VALUE_LOADS; n++) next_values[n] = load_value(n * LOCAL + lane, v_base, from);
#ifdef MASK
#define FETCH(from)                                                                                          \
    {                                                                                                        \
        FETCH_KEYS(from)                                                                                     \
        int at = mask_base + min((from) + lane % BN, keys - 1) * mask_key;                                   \
        [[unroll]] for (int n = 0; n < MASK_LOADS; n++) {                                                    \
            int row = min(first_row + lane / BN + n * (LOCAL / BN), queries - 1);                            \
            next_mask[n] = LOAD(mask, at + row * mask_row);                                                  \
        }                                                                                                    \
    }
#else
#define FETCH(from) { FETCH_KEYS(from) }
#endif

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int row_blocks = (queries + BM - 1) / BM;
    int group = int(flat_group());
    int batch = group / row_blocks;
    if (batch >= images * heads) return;
    int first_row = group % row_blocks * BM;
    int member = lane % LANES;
    int cluster_row = lane / LANES * ROWS;
    int of_keys = batch / heads * (heads / heads_of_keys) + batch % heads / heads_of_keys;
    int k_base = of_keys * keys * head_size;
    int v_base = of_keys * keys * value_size;
    // The query and the first key of those whose scores are this lane's.
    int own = member / SHARING;
    int own_row = cluster_row + own;
    int own_key = member % SHARING * PART;
    int end = CAUSAL ? min(keys, first_row + own_row + 1) : keys;

    vec4 query[ROWS * OF_HEAD];
    [[unroll]] for (int r = 0; r < ROWS; r++) {
        int row = first_row + cluster_row + (r ^ own);
        int base = (batch * queries + row) * head_size;
        [[unroll]] for (int j = 0; j < OF_HEAD; j++) {
            int part = j * LANES + member;
            vec4 of_query = vec4(0.0);
            if (row < queries && part < HEAD4S) {
                if (Q_VEC4) {
                    of_query = LOAD4(q4, base / 4 + part);
                } else {
                    [[unroll]] for (int c = 0; c < 4; c++) {
                        if (part * 4 + c < head_size) of_query[c] = LOAD(q, base + part * 4 + c);
                    }
                }
            }
            query[r * OF_HEAD + j] = of_query;
        }
    }
    vec4 acc[ROWS * OF_VALUE];
    [[unroll]] for (int i = 0; i < ROWS * OF_VALUE; i++) acc[i] = vec4(0.0);
    float peak = LOWEST;
    float total = 0.0;
    vec4 next_keys[KEY_LOADS];
    vec4 next_values[VALUE_LOADS];
#ifdef MASK
    float next_mask[MASK_LOADS];
    int mask_base = batch / heads % mask_images * mask_image + batch % heads * mask_head;
#endif

    int seen = CAUSAL ? min(keys, first_row + BM) : keys;
    if (AHEAD) FETCH(0)
    for (int first_key = 0; first_key < seen; first_key += BN) {
        if (!AHEAD) FETCH(first_key)
        barrier();
        [[unroll]] for (int n = 0; n < KEY_LOADS; n++) {
            int i = n * LOCAL + lane;
            if (i < BN * HEAD_LINE) key_tile[key_of(i) * HEAD_LINE + vec4_of_key(i)] = next_keys[n];
        }
        [[unroll]] for (int n = 0; n < VALUE_LOADS; n++) {
            int i = n * LOCAL + lane;
            if (i < BN * VALUE_LINE) value_tile[i] = next_values[n];
        }
#ifdef MASK
        [[unroll]] for (int n = 0; n < MASK_LOADS; n++) {
            mask_tile[(lane / BN + n * (LOCAL / BN)) * MASK_LINE + lane % BN] = next_mask[n];
        }
#endif
        barrier();
        if (AHEAD && first_key + BN < seen) FETCH(first_key + BN)
        int tile_keys = min(BN, seen - first_key);
        for (int first = 0; first < tile_keys; first += CHUNK) {
            float s[SCORES];
            [[unroll]] for (int i = 0; i < SCORES; i++) s[i] = 0.0;
            [[unroll]] for (int c = 0; c < CHUNK; c++) {
                [[unroll]] for (int j = 0; j < OF_HEAD; j++) {
                    vec4 of_key = key_tile[(first + (c ^ own_key)) * HEAD_LINE + j * LANES + member];
                    [[unroll]] for (int e = 0; e < 4; e++) {
                        [[unroll]] for (int r = 0; r < ROWS; r++) {
                            s[r * CHUNK + c] += query[r * OF_HEAD + j][e] * of_key[e];
                        }
                    }
                }
            }
#ifdef CLUSTERS
            if (LANES == 2) {
                HALVE(1, SCORES / 2)
            } else if (LANES == 4) {
                HALVE(2, SCORES / 2)
                HALVE(1, SCORES / 4)
            } else {
                HALVE(4, SCORES / 2)
                HALVE(2, SCORES / 4)
                HALVE(1, SCORES / 8)
            }
#endif
            // Where a score is NaN its weight is, whatever the maximum, and so are the row and its sum.
            float top = peak;
            int left = end - first_key - first - own_key;
            [[unroll]] for (int i = 0; i < PART; i++) {
                float score = s[i] * scale;
#ifdef MASK
                score += mask_tile[own_row * MASK_LINE + first + own_key + i];
#endif
                s[i] = i < left ? score : LOWEST;
                top = max(top, s[i]);
            }
#ifdef CLUSTERS
            [[unroll]] for (int apart = 1; apart < SHARING; apart *= 2) top = max(top, subgroupShuffleXor(top, uint(apart)));
#endif
            // What scores are relative to: the largest, or anything where all are -inf and their exponentials are 0.
            float base = top == LOWEST ? 0.0 : top;
            EXP_BELOW(peak - base, kept)
            peak = top;
            total *= kept;
            [[unroll]] for (int i = 0; i < PART; i++) {
                EXP_BELOW(s[i] - base, weight)
                s[i] = weight;
                total += weight;
            }
            [[unroll]] for (int r = 0; r < ROWS; r++) {
                float kept_of_row = FROM_MEMBER(kept, r * SHARING);
                [[unroll]] for (int j = 0; j < OF_VALUE; j++) acc[r * OF_VALUE + j] *= kept_of_row;
            }
            [[unroll]] for (int c = 0; c < CHUNK; c++) {
                float weights[ROWS];
                [[unroll]] for (int r = 0; r < ROWS; r++) {
                    weights[r] = FROM_MEMBER(s[(r * CHUNK + c) % PART], (r * CHUNK + c) / PART);
                }
                [[unroll]] for (int j = 0; j < OF_VALUE; j++) {
                    vec4 of_value = value_tile[(first + (c ^ own_key)) * VALUE_LINE + j * LANES + member];
                    [[unroll]] for (int r = 0; r < ROWS; r++) acc[r * OF_VALUE + j] += weights[r] * of_value;
                }
            }
        }
    }
#ifdef CLUSTERS
    [[unroll]] for (int apart = 1; apart < SHARING; apart *= 2) total += subgroupShuffleXor(total, uint(apart));
#endif
    // The largest score adds 1 to the sum, which is 0 where all are -inf.
    float nothing = ZERO_ROWS ? 0.0 : uintBitsToFloat(NAN_BITS);
    float factor = isnan(total) ? total : total == 0.0 ? nothing : 1.0 / total;
    [[unroll]] for (int r = 0; r < ROWS; r++) {
        int row = first_row + cluster_row + (r ^ own);
        float factor_of_row = FROM_MEMBER(factor, r * SHARING);
        int at = (batch * queries + row) * value_size;
        [[unroll]] for (int j = 0; j < OF_VALUE; j++) {
            int part = j * LANES + member;
            vec4 result = acc[r * OF_VALUE + j] * factor_of_row;
            if (row < queries && part < VALUE4S) {
                if (V_VEC4) {
                    STORE4(y4, at / 4 + part, result);
                } else {
                    [[unroll]] for (int c = 0; c < 4; c++) {
                        if (part * 4 + c < value_size) STORE(y, at + part * 4 + c, result[c]);
                    }
                }
            }
        }
    }
}
