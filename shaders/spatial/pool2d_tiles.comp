#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "common.glsl"
#include "windows.glsl"

// RY x PX neighbouring outputs of a plane by each invocation. An input row that they touch is loaded once, by vectors
// that begin where X_WHOLE elements do, and reduced along the row for all of them; outputs of a column share that. Those
// of a row are stored by vectors of up to Y_WHOLE elements. Which rows and columns may lie outside is known when this is
// compiled: the others are not tested. A maximum moves bits, compared as integers in the order of floats, every NaN
// above infinity.
const uint AVERAGE = 0, MAXIMUM = 1;  // KINDS in vkconv/ops/spatial/pool2d.py
// Elements of a word; those of 16 bits are in the upper half of what is compared, whatever lies below.
#ifdef DTYPE_f32
const int EACH = 1;
const int BELOW_INFINITY = 0x007FFFFF;  // least bits of -infinity in the order of integers, above the least integer
#else
const int EACH = 2;
#ifdef DTYPE_f16
const int BELOW_INFINITY = 0x03FF0000;
#else
const int BELOW_INFINITY = 0x007F0000;
#endif
#endif
const int LEAST = int(0x80000000u);
const int OUTSIDE = KIND == MAXIMUM ? LEAST : 0;

const int COLUMN_BLOCKS = (OW + PX - 1) / PX;
const int ROW_BLOCKS = (OH + RY - 1) / RY;
const int ROWS = (RY - 1) * SH + (KH - 1) * DH + 1;
const int SPAN = (PX - 1) * SW + (KW - 1) * DW + 1;
const int VECTOR = X_WHOLE < 4 * EACH ? X_WHOLE : 4 * EACH;  // elements of a load
const int WORDS = VECTOR / EACH;  // 0: by elements
const int STORED = Y_WHOLE < 4 * EACH ? Y_WHOLE : 4 * EACH;
const int Y_WORDS = STORED / EACH;
const int SKIP = (VECTOR - LEFT % VECTOR) % VECTOR;  // elements of the first vector before the first of the span
const int VECTORS = (SKIP + SPAN + VECTOR - 1) / VECTOR;
// Without dilation the row or column at the edge is in each window that goes beyond it: it stands for what is outside.
const bool REPEAT_ROWS = KIND == MAXIMUM && DH == 1;
const bool REPEAT_COLUMNS = KIND == MAXIMUM && DW == 1 && WORDS == 0;
// Windows that lie on what is counted as a whole.
const bool WHOLE_ROWS =
    (COUNT_PADDING || TOP == 0) && (OH - 1) * SH - TOP + (KH - 1) * DH < H + (COUNT_PADDING ? BOTTOM : 0);
const bool WHOLE_COLUMNS =
    (COUNT_PADDING || LEFT == 0) && (OW - 1) * SW - LEFT + (KW - 1) * DW < W + (COUNT_PADDING ? RIGHT : 0);

// To the order of integers and back: negative floats are turned round, then NaN with the sign wraps to the top.
int ordered(uint bits) { return (int(bits) ^ (int(bits) >> 31 & 0x7FFFFFFF)) - BELOW_INFINITY; }
uint unordered(int key) {
    key += BELOW_INFINITY;
    return uint(key ^ (key >> 31 & 0x7FFFFFFF));
}

// Element `e` of a word as what is combined: its place in the order, or the bits of an f32.
int term(uint word, int e) {
#ifdef DTYPE_f32
    return KIND == MAXIMUM ? ordered(word) : int(word);
#else
    if (KIND == MAXIMUM) return ordered(e == 0 ? word << 16 : word);
    vec2 both = from_bits2(word);
    return floatBitsToInt(e == 0 ? both.x : both.y);
#endif
}

int element_term(int index) {
#ifdef DTYPE_f32
    return term(floatBitsToUint(x[index]), 0);
#else
    return term(BITS_AT(x, index), 0);
#endif
}

int combined(int p, int q) {
    return KIND == MAXIMUM ? max(p, q) : floatBitsToInt(intBitsToFloat(p) + intBitsToFloat(q));
}

int taps_of(int first, int step, int count, int before, int extent, int after) {
    ivec2 taps = COUNT_PADDING ? taps_inside(first + before, step, count, before + extent + after)
                               : taps_inside(first, step, count, extent);
    return max(taps.y - taps.x, 0);
}

void main() {
    uint index = flat_index();
    if (index >= planes * uint(ROW_BLOCKS * COLUMN_BLOCKS)) return;
    uint blocks = index / uint(COLUMN_BLOCKS);
    int column = int(index % uint(COLUMN_BLOCKS));
    int row = int(blocks % uint(ROW_BLOCKS)) * RY;
    int plane = int(blocks / uint(ROW_BLOCKS));
    int iy0 = row * SH - TOP;
    int ix0 = column * (PX * SW) - LEFT;
    int vector0 = column * (PX * SW / VECTOR) - (LEFT + SKIP) / VECTOR;

    int made[RY * PX];
    [[unroll]] for (int r = 0; r < ROWS; r++) {
        int iy = iy0 + r;
        bool edge_row = r < TOP || (ROW_BLOCKS - 1) * RY * SH - TOP + r >= H;
        int line = (plane * H + (edge_row ? clamp(iy, 0, H - 1) : iy)) * (W / VECTOR);
        int v[SPAN];
        [[unroll]] for (int i = 0; i < VECTORS; i++) {
            int from = i * VECTOR - SKIP;
            bool beside = from < LEFT || (COLUMN_BLOCKS - 1) * PX * SW - LEFT + from + VECTOR > W;
            int at = line + (beside ? clamp(vector0 + i, 0, W / VECTOR - 1) : vector0 + i);
            if (WORDS == 0) {
                v[i] = element_term(at);
            } else {
                int first = max(-from, 0) / EACH;
                int last = (min(VECTOR, SPAN - from) - 1) / EACH;
                uvec4 words = uvec4(0u);
                if (first == last) {
                    words[first] = x1[at * WORDS + first];
                } else if (WORDS == 2) {
                    words.xy = x2[at];
                } else {
                    words = x4[at];
                }
                [[unroll]] for (int e = 0; e < VECTOR; e++) {
                    if (from + e >= 0 && from + e < SPAN) v[from + e] = term(words[e / EACH], e % EACH);
                }
            }
        }
        [[unroll]] for (int s = 0; s < SPAN; s++) {
            bool edge = s < LEFT || (COLUMN_BLOCKS - 1) * PX * SW - LEFT + s >= W;
            if (edge && !REPEAT_COLUMNS) v[s] = uint(ix0 + s) < uint(W) ? v[s] : OUTSIDE;
        }
        int across[PX];
        [[unroll]] for (int p = 0; p < PX; p++) {
            across[p] = v[p * SW];
            [[unroll]] for (int kx = 1; kx < KW; kx++) across[p] = combined(across[p], v[p * SW + kx * DW]);
            if (edge_row && !REPEAT_ROWS) across[p] = uint(iy) < uint(H) ? across[p] : OUTSIDE;
        }
        [[unroll]] for (int o = 0; o < RY; o++) {
            int reach = r - o * SH;
            if (reach >= 0 && reach % DH == 0 && reach / DH < KH) {
                [[unroll]] for (int p = 0; p < PX; p++) {
                    made[o * PX + p] = reach == 0 ? across[p] : combined(made[o * PX + p], across[p]);
                }
            }
        }
    }

    int counts[PX];
    [[unroll]] for (int p = 0; p < PX; p++) {
        counts[p] = WHOLE_COLUMNS ? KW : taps_of(ix0 + p * SW, DW, KW, LEFT, W, RIGHT);
    }
    [[unroll]] for (int o = 0; o < RY; o++) {
        int count = WHOLE_ROWS ? KH : taps_of(iy0 + o * SH, DH, KH, TOP, H, BOTTOM);
        uint bits[PX];
        [[unroll]] for (int p = 0; p < PX; p++) {
            if (KIND == MAXIMUM) {
                bits[p] = unordered(made[o * PX + p]);
            } else {
                float mean = intBitsToFloat(made[o * PX + p]) / float(count * counts[p]);
#ifdef DTYPE_f32
                bits[p] = floatBitsToUint(mean);
#else
                bits[p] = to_bits(mean) << 16;
#endif
            }
        }
        if (OH % RY == 0 || row + o < OH) {
            int to = (plane * OH + row + o) * OW + column * PX;
            [[unroll]] for (int p = 0; p < PX; p += STORED) {
                if (OW % PX == 0 || column * PX + p < OW) {
                    if (Y_WORDS == 0) {
#ifdef DTYPE_f32
                        y[to + p] = uintBitsToFloat(bits[p]);
#else
                        STORE_BITS(y, to + p, bits[p] >> 16);
#endif
                    } else {
                        uvec4 words = uvec4(0u);
                        [[unroll]] for (int i = 0; i < Y_WORDS; i++) {
                            uint low = bits[min(p + i * EACH, PX - 1)];
                            uint high = bits[min(p + i * EACH + 1, PX - 1)];
                            words[i] = EACH == 1 ? low : low >> 16 | (high & 0xFFFF0000u);
                        }
                        int target = (to + p) / STORED;
                        if (Y_WORDS == 1) {
                            y1[target] = words.x;
                        } else if (Y_WORDS == 2) {
                            y2[target] = words.xy;
                        } else {
                            y4[target] = words;
                        }
                    }
                }
            }
        }
    }
}
