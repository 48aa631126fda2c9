#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "conv2d_cooperative.glsl"

// Implicit GEMM by cooperative matrices: (c_out per group) x (pixels of all images) = (c_out x K) by (K x pixels), K =
// taps x channels (conv2d_gemm.comp has the same in f32). K-tiles of the input come in one of three ways. Where it is a
// matrix as it lies (B_ROW is 0: 1x1, stride 1, no padding) a load has eight pixels of a channel: WORD of them at a
// time, 8 or 4, which planes are whole numbers of, or (PADDED) from the two words that they lie across, the last of
// which ends with the input (ENDS_WHOLE). LAST: words of eight channels are read from a copy that has these last and
// is padded (channels_last.comp), so that no load is tested, and taps follow one another with all their channels.
// Else the input is gathered pixel by pixel, eight channels of one by a lane, so that its neighbours read
// neighbouring pixels; what is none, in the padding or beyond the last channel, is another element, which a mask
// makes zero: loads behind branches would wait for one another. Weights are packed [group][c_out /
// BM][taps][channels][BM] (pack_tiles.comp), zeros beyond both ends: channels up to whole 8-wide vectors where loads
// are of these, up to k-tiles where they are gathered. LINEAR leaves channels and taps in the order of w. With
// SPLIT_K > 1 the sum is that many split-K slices of whole k-tiles, which sum_split_k.comp adds up. With REDUCE the
// results are reduced along the pixels of each image (reduced.glsl), and what a tile comes to is stored: [tile along
// the pixels][slot for an image][channel]; PRODUCT stores the results too.

const bool GATHERS = B_ROW == 1 && !LAST;
const bool SHIFTS = B_ROW == 0 && PADDED;
const int PIXELS = BN > TEAM_LANES ? BN / TEAM_LANES : 1;  // that a lane gathers, in turn

// Gathered loads are numbered pixel first.
#define SLOT_A SLOT_BY_LINES_A
#define SLOT_B(index) (GATHERS ? (index) % BN * B_LINE + (index) / BN : SLOT_BY_LINES_B(index))

LOAD8_NEAR_END(near_end, x, n * c_in * h * w)

// What is loaded in pieces is put together only when it is there.
#define FINISH_LOADS                                                                                                   \
    if (GATHERS) {                                                                                                     \
        [[unroll]] for (int i = 0; i < B_LOADS; i++) b_next[i] = PACKED8(b_bits, i) & b_mask[i];                       \
    } else if (SHIFTS) {                                                                                               \
        [[unroll]] for (int i = 0; i < B_LOADS; i++) b_next[i] = shifted(b_next[i], b_after[i], b_first[i * B_ALIKE]); \
    }

// The mask of a vector of which the elements to ``last`` are there; of whole ones those that are not are no loads.
uvec4 mask_to(int last) {
    if (WHOLE) return uvec4(0xffffffffu);
    ivec4 behind = last - ivec4(0, 2, 4, 6);
    return mix(mix(uvec4(0xffffffffu), uvec4(0xffffu), equal(behind, ivec4(0))), uvec4(0u), lessThan(behind, ivec4(0)));
}

// What a linear load has next: the neighbour of the window's row, else of its next row, else of the next channel.
#define NEXT_TAP                                   \
    {                                              \
        bool turns = ++x_tap == KW;                \
        at += turns ? dh * w - (KW - 1) * dw : dw; \
        left += turns ? -(KW - 1) * dw : dw;       \
        if (turns) x_tap = 0;                      \
        if (turns) top += dh;                      \
        bool ends = turns && ++y_tap == KH;        \
        if (ends) at += (h - KH * dh) * w;         \
        if (ends) top -= KH * dh;                  \
        if (ends) y_tap = 0;                       \
    }

#define HAS(count, i) ((count) % TEAM_LANES == 0 || lane + (i) * TEAM_LANES < (count))

// K-tile ``step`` of this workgroup's into registers; ky, kx and k0 say where a gathered one begins.
#define LOAD_K_TILE(step, CHECKED)                                                                                \
    int k_tile = first_k_tile + (step);                                                                           \
    [[unroll]] for (int i = 0; i < A_LOADS; i++) {                                                                \
        if (HAS(A_COUNT, i)) {                                                                                    \
            bool ok = !(CHECKED) || GATHERS || k_tile * BK + (lane + i * TEAM_LANES) / A_VEC8S < packed_depth;    \
            a_next[i] = ok ? weight[a_from + k_tile * A_COUNT + lane + i * TEAM_LANES] : uvec4(0u);               \
        }                                                                                                         \
    }                                                                                                             \
    int word = LAST ? k_tile * (BK / 8) + lane % B_VEC8S : 0;                                                     \
    int tap = divided(word, vec8s, vec8s_factor, vec8s_shift).x;                                                  \
    int from_word = (tap / KW * dh * last_w + tap % KW * dw) * all_vec8s + word - tap * vec8s;                    \
    [[unroll]] for (int i = 0; i < B_LOADS; i++) {                                                                \
        if (B_ROW == 0 && HAS(B_COUNT, i)) {                                                                      \
            bool ok = !(CHECKED) || k_tile * BK + (lane + i * TEAM_LANES) / B_VEC8S < depth;                      \
            if (SHIFTS) {                                                                                         \
                if (ok) {                                                                                         \
                    LOAD_ACROSS(ENDS_WHOLE, x8, near_end, b_at[i] + k_tile * b_step, b_next[i], b_after[i])       \
                } else {                                                                                          \
                    b_next[i] = b_after[i] = uvec4(0u);                                                           \
                }                                                                                                 \
            } else if (WORD == 8) {                                                                               \
                b_next[i] = ok ? x8[b_at[i] + k_tile * b_step] : uvec4(0u);                                       \
            } else {                                                                                              \
                b_next[i].xy = ok ? x4[b_at[i] + k_tile * b_step] : uvec2(0u);                                    \
                b_next[i].zw = ok ? x4[b_high_at[i] + k_tile * b_step] : uvec2(0u);                               \
            }                                                                                                     \
        } else if (LAST && HAS(B_COUNT, i)) {                                                                     \
            b_next[i] = !(CHECKED) || word * 8 < packed_depth ? x8[b_at[i] + from_word] : uvec4(0u);              \
        } else if (GATHERS && HAS(B_COUNT, i)) {                                                                  \
            int k = k0 + (lane + i * TEAM_LANES) / BN * 8;                                                        \
            ivec4 place = places[i % PIXELS];                                                                     \
            bool inside = place.x != 0 && (WHOLE || k < depth);                                                   \
            int y_tap = LINEAR ? k / KW % KH : ky;                                                                \
            int x_tap = LINEAR ? k % KW : kx;                                                                     \
            int top = place.y + y_tap * dh;                                                                       \
            int left = place.z + x_tap * dw;                                                                      \
            bool tap_ok = inside && top >= 0 && top < h && left >= 0 && left < w;                                 \
            int at = place.w + ((LINEAR ? k / (KH * KW) : k) * h + y_tap * dh) * w + x_tap * dw;                  \
            if (LINEAR) {                                                                                         \
                b_mask[i] = uvec4(0u);                                                                            \
                [[unroll]] for (int q = 0; q < 8; q++) {                                                          \
                    bool ok = inside && top >= 0 && top < h && left >= 0 && left < w && (WHOLE || k + q < depth); \
                    b_bits[i * 8 + q] = BITS_AT(x, ok ? at : 0);                                                  \
                    b_mask[i][q / 2] |= ok ? 0xffffu << q % 2 * 16 : 0u;                                          \
                    NEXT_TAP                                                                                      \
                }                                                                                                 \
            } else {                                                                                              \
                int last = tap_ok ? (WHOLE ? 7 : min(depth - 1 - k, 7)) : -1;                                     \
                b_mask[i] = mask_to(last);                                                                        \
                if (!tap_ok) at = 0;                                                                              \
                [[unroll]] for (int q = 0; q < 8; q++) {                                                          \
                    int from = at + (WHOLE ? q : clamp(last, 0, q)) * h * w;                                      \
                    b_bits[i * 8 + q] = !WHOLE || tap_ok ? BITS_AT(x, from) : 0u;                                 \
                }                                                                                                 \
            }                                                                                                     \
        }                                                                                                         \
    }                                                                                                             \
    k0 += BK;                                                                                                     \
    if (GATHERS && !LINEAR && k0 >= depth) {                                                                      \
        k0 = 0;                                                                                                   \
        if (++kx == KW) {                                                                                         \
            kx = 0;                                                                                               \
            ky++;                                                                                                 \
        }                                                                                                         \
    }

#ifdef REDUCE
#include "addends.glsl"
#include "reduced.glsl"
// Lanes of a subgroup that share a row of a matrix on its way out, and of all subgroups a row of the tile.
const int ROW_LANES = SUBGROUP < MM ? 1 : SUBGROUP / MM;
const int ROW_PARTS = BN / SN * ROW_LANES;

// What each of them comes to, of each reduction and of each image that the tile has pixels of.
shared float totals[REDUCTIONS * SLOTS * ROW_PARTS * BM];

int total_at(int reduction, int slot, int part, int row) {
    return ((reduction * SLOTS + slot) * ROW_PARTS + part) * BM + row;
}

// Row ``row`` of the tile, channel c, the columns from ``first`` on that a subgroup has in shared memory at ``line``.
// What an image comes to goes to totals when its last column is met.
void reduce_row(int c, bool is_channel, int row, int first, int first_image, int of_row, int line, int part) {
    Channel channel = channel_of(c);
    [[dont_unroll]] for (int reduction = 0; reduction < REDUCTIONS; reduction++) {
        int slot = 0;
        float total = totals[total_at(reduction, 0, part, row)];
        for (int column = of_row; column < MN; column += ROW_LANES) {
            ivec2 at = image_and_pixel(min(first + column, all_columns() - 1));
            bool is_pixel = first + column < all_columns() && at.y < oh * ow;
            if (at.x - first_image != slot) {
                totals[total_at(reduction, slot, part, row)] = total;
                slot = at.x - first_image;
                total = totals[total_at(reduction, slot, part, row)];
            }
            int pixel = min(at.y, oh * ow - 1);
            int to = place_in_y(c, ivec2(at.x, pixel));
            float sum = uintBitsToFloat(tiles[line + column / 4][column % 4]);
            float value = finish(sum, channel, added_at(to, at.x, c, pixel));
            if (is_pixel) total = combined(reduction, total, term_of(reduction, value));
#ifdef PRODUCT
            if (reduction == 0 && is_pixel && is_channel) STORE(product, to, value);
#endif
        }
        totals[total_at(reduction, slot, part, row)] = total;
    }
}

// The sums of a subgroup to totals, as matmul_cooperative.comp has it: no other lane has a lane's places there.
#define REDUCE_ACCUMULATORS                                                                                           \
    int scratch = int(gl_SubgroupID) * MM * ADD_LINE;                                                                 \
    int of_subgroup = int(gl_SubgroupInvocationID);                                                                   \
    int of_row = of_subgroup / MM;                                                                                    \
    int part = in_team() % (BN / SN) * ROW_LANES + of_row;                                                            \
    int first_image = image_and_pixel(block_col * BN).x;                                                              \
    [[dont_unroll]] for (int reduction = 0; reduction < REDUCTIONS; reduction++) {                                    \
        [[dont_unroll]] for (int slot = 0; slot < SLOTS; slot++) {                                                    \
            [[dont_unroll]] for (int i = 0; i < first_team(ROWS); i++) {                                              \
                for (int r = of_subgroup % MM; r < MM; r += SUBGROUP) {                                               \
                    totals[total_at(reduction, slot, part, first_row() + i * MM + r)] = nothing(reduction);           \
                }                                                                                                     \
            }                                                                                                         \
        }                                                                                                             \
    }                                                                                                                 \
    [[dont_unroll]] for (int turn = 0; turn < ROWS * COLUMNS; turn++) {                                               \
        if (team() == 0) STAGE_MATRIX(turn, scratch)                                                                  \
        subgroupBarrier();                                                                                            \
        int out_column = block_col * BN + first_column() + turn % COLUMNS * MN;                                       \
        for (int r = of_subgroup % MM; r < first_team(MM); r += SUBGROUP) {                                           \
            int row = first_row() + turn / COLUMNS * MM + r;                                                          \
            int of_group = block_row * BM + row;                                                                      \
            reduce_row(group * out_group() + min(of_group, out_group() - 1), of_group < out_group(), row, out_column, \
                       first_image, of_row, scratch + r * ADD_LINE, part);                                            \
        }                                                                                                             \
        subgroupBarrier();                                                                                            \
    }
#endif

void main() {
    int lane = lane_of_team();
    int in_group = c_in / groups;
    int plane = oh * ow;
    int columns = all_columns();
    int row_blocks = (out_group() + BM - 1) / BM;
    int col_blocks = (columns + BN - 1) / BN;
    int depth = LINEAR ? in_group * KH * KW : in_group;
    int vec8s = (in_group + 7) / 8;
    int all_vec8s = groups * vec8s;
    // Of the sum, as its weights are packed.
    int chunks = (depth + BK - 1) / BK;
    int packed_depth = GATHERS ? (LINEAR ? 1 : KH * KW) * chunks * BK : KH * KW * vec8s * 8;
    int steps = (packed_depth + BK - 1) / BK;

    int index = int(flat_group());
    if (index >= SPLIT_K * groups * row_blocks * col_blocks) return;
    int block_row = index % row_blocks;
    index /= row_blocks;
    int block_col = index % col_blocks;
    index /= col_blocks;
    int group = SPLIT_K == 1 ? index : index % groups;
    int slice = SPLIT_K == 1 ? 0 : index / groups;
    int first_k_tile = SPLIT_K == 1 ? 0 : slice * steps / SPLIT_K;
    int k_tiles = SPLIT_K == 1 ? steps : (slice + 1) * steps / SPLIT_K - first_k_tile;
    first_k_tile += first_of_team(team(), k_tiles);
    first_of_slice = slice * n * c_out * plane;

    // The pixels that this invocation gathers: whether each is one, where its window begins, and that as an element.
    ivec4 places[PIXELS];
    [[unroll]] for (int i = 0; i < PIXELS; i++) {
        int pixel = block_col * BN + lane % BN + i * TEAM_LANES;
        ivec2 of_image = image_and_pixel(pixel);
        ivec2 corner = row_and_column(of_image.y) * ivec2(sh, sw) - ivec2(pt, pl);
        int origin = (of_image.x * c_in + group * in_group) * h * w + corner.x * w + corner.y;
        places[i] = ivec4(int(pixel < columns), corner, origin);
    }
    int a_from = (group * row_blocks + block_row) * (packed_depth * BM / 8);
    int ky = LINEAR ? 0 : first_k_tile / (KW * chunks);
    int kx = LINEAR ? 0 : first_k_tile / chunks % KW;
    int k0 = first_k_tile % chunks * BK;

    ACCUMULATOR sums[ROWS * COLUMNS];
    [[unroll]] for (int i = 0; i < ROWS * COLUMNS; i++) sums[i] = ACCUMULATOR(0.0);
    uvec4 a_next[A_LOADS];
    uvec4 b_next[B_LOADS];
    uint b_bits[B_LOADS * 8];
    uvec4 b_mask[B_LOADS];
    int b_at[B_LOADS];
    uvec4 b_after[B_LOADS];
    int b_first[B_LOADS];
    int b_high_at[B_LOADS];
    const int b_word = SHIFTS ? 8 : WORD;
    int b_step = BK * plane / b_word;
    [[unroll]] for (int i = 0; i < B_LOADS; i++) {
        int vec8 = lane + i * TEAM_LANES;
        // Past the last pixel the last ones are read again: those sums are not stored.
        if (LAST) {
            ivec2 p = image_and_pixel(min(block_col * BN + vec8 / B_VEC8S, columns - 1));
            ivec2 at = row_and_column(p.y);
            b_at[i] = ((p.x * last_h + at.x * last_sh) * last_w + at.y * last_sw) * all_vec8s + group * vec8s;
        } else {
            int first = block_col * BN + vec8 % B_VEC8S * 8;
            ivec2 p = image_and_pixel(min(first, columns - (SHIFTS ? 8 : WORD)));
            ivec2 high = image_and_pixel(min(first + 4, columns - WORD));
            int c = group * in_group + vec8 / B_VEC8S;
            int at = (p.x * c_in + c) * plane + p.y;
            b_first[i] = at & 7;
            b_at[i] = at / b_word;
            b_high_at[i] = ((high.x * c_in + c) * plane + high.y) / WORD;
        }
    }
    K_LOOP(k_tiles, WHOLE || GATHERS)
#ifdef REDUCE
    ADD_TEAMS
    REDUCE_ACCUMULATORS
    barrier();
    int images = image_and_pixel(min((block_col + 1) * BN, columns) - 1).x - first_image + 1;
    [[dont_unroll]] for (int reduction = 0; reduction < REDUCTIONS; reduction++) {
        for (int task = int(gl_LocalInvocationID.x); task < images * BM; task += LANES) {
            int slot = task / BM;
            int row = task % BM;
            float total = nothing(reduction);
            for (int i = 0; i < ROW_PARTS; i++) {
                total = combined(reduction, total, totals[total_at(reduction, slot, i, row)]);
            }
            int line = TO_PARTS ? block_col * SLOTS + slot : first_image + slot;
            int of_group = block_row * BM + row;
            if (of_group < out_group()) put(reduction, line * c_out + group * out_group() + of_group, total, divisor);
        }
    }
#else
    STORE_ACCUMULATORS(Place, PLACE_OF, Added, added_to, STORE_OUTPUTS)
#endif
}
