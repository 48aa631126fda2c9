#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "integer_conv.glsl"
#ifdef SHUFFLE
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#endif

// Sliding window: each invocation makes CO output channels of a group x PX neighbouring output columns. The inputs of a
// row come four to a word, once for all taps and channels; weight is packed [group][c_out / CO][c_in][kh][kw][CO]
// (integer_pack.comp) and its address is the same in every lane. Products are of floats, which a CPU multiplies faster
// than integers, and exact: sums stay below 2^24, past which they go over to integers. With SHUFFLE the lanes of a
// subgroup load the weights of a row of taps at once, a tap each, and hand them out.
const int SPAN = (PX - 1) * SW + (KW - 1) * DW + 1;
const int WORDS = (SPAN + 3) / 4;
const int LOADS = OFFSET >= 0 ? (SPAN + OFFSET + 3) / 4 : (SPAN + 6) / 4;
const int ACCS = CO * PX;
const int MOST_TERMS = 514;  // of at most 255 * 128 each

void main() {
    int columns = (ow + PX - 1) / PX;
    int local = int(gl_WorkGroupSize.x);
    int blocks = (oh * columns + local - 1) / local;
    int out_group = c_out / groups;
    int in_group = c_in / groups;
    int co_tiles = (out_group + CO - 1) / CO;
    int index = int(flat_group());
    if (index >= n * groups * co_tiles * blocks) return;
    int block = index % blocks;
    int tile = index / blocks % (groups * co_tiles);
    int image = index / blocks / (groups * co_tiles);
    int group = tile / co_tiles;

    int run = block * local + int(gl_LocalInvocationID.x);
    bool inside = run < oh * columns;
    int oy = run / columns;
    int ox0 = run % columns * PX;
    int iy0 = oy * sh - pt;
    int ix0 = ox0 * SW - pl;
    int zero_value = x_zero();
    uint zero_word = uint(zero_value & 0xFF) * 0x01010101u;
    float zero = float(zero_value);
    int last = (n * c_in * h * w - 1) >> 2;
    bool has_zeros = channels[c_out].y != 0;
    int y_zero = channels[c_out].x;

    float acc[ACCS];
    int total[ACCS];
    float x_acc[PX];
    int x_total[PX];
    [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] = 0.0;
    if (LONG) [[unroll]] for (int i = 0; i < ACCS; i++) total[i] = 0;
    [[unroll]] for (int p = 0; p < PX; p++) x_acc[p] = 0.0;
    [[unroll]] for (int p = 0; p < PX; p++) x_total[p] = 0;
    int terms = 0;
    int tap = tile * in_group * kh * KW;
    int plane = image * c_in + group * in_group;
    for (int ci = 0; ci < in_group; ci++) {
        for (int ky = 0; ky < kh; ky++) {
            int iy = iy0 + ky * dh;
            bool row_inside = iy >= 0 && iy < h;
            int first = ((plane + ci) * h + iy) * w + ix0;
            int shift = 8 * (OFFSET >= 0 ? OFFSET : first & 3);
            uint loaded[LOADS];
            [[unroll]] for (int i = 0; i < LOADS; i++) {
                uint bytes4 = x[clamp((first >> 2) + i, 0, last)] ^ flips(X_SIGNED);
                loaded[i] = row_inside ? bytes4 : zero_word;
            }
            float v[4 * WORDS];
            [[unroll]] for (int i = 0; i < WORDS; i++) {
                uint next = i + 1 < LOADS ? loaded[min(i + 1, LOADS - 1)] << 1 : 0u;
                int bytes4 = int(OFFSET == 0 ? loaded[i] : (loaded[i] >> shift) | (next << (31 - shift)));
                [[unroll]] for (int k = 0; k < 4; k++) {
                    int ix = ix0 + 4 * i + k;
                    bool ok = !PAST_ROWS || (ix >= 0 && ix < w);
                    v[4 * i + k] = ok ? float(bitfieldExtract(bytes4, 8 * k, 8)) - zero : 0.0;
                }
            }
#ifdef SHUFFLE
            uvec4 mine = weight[tap + min(int(gl_SubgroupInvocationID), KW - 1)];
#endif
            [[unroll]] for (int kx = 0; kx < KW; kx++) {
                uint packed[(CO + 3) / 4];
#ifdef SHUFFLE
                [[unroll]] for (int i = 0; i < 4; i++) packed[min(i, CO / 4 - 1)] = subgroupShuffle(mine[i], kx);
#elif defined(VEC4)
                [[unroll]] for (int i = 0; i < CO / 16; i++) {
                    uvec4 sixteen = weight[(tap + kx) * (CO / 16) + i];
                    packed[4 * i] = sixteen.x;
                    packed[4 * i + 1] = sixteen.y;
                    packed[4 * i + 2] = sixteen.z;
                    packed[4 * i + 3] = sixteen.w;
                }
#else
                [[unroll]] for (int i = 0; i < (CO + 3) / 4; i++) packed[i] = weight[((tap + kx) * CO >> 2) + i];
#endif
                [[unroll]] for (int c = 0; c < CO; c++) {
                    int place = CO < 4 ? 8 * ((tap + kx) * CO + c & 3) : 8 * (c & 3);
                    float k = float(bitfieldExtract(int(packed[c / 4]), place, 8));
                    [[unroll]] for (int p = 0; p < PX; p++) acc[c * PX + p] += k * v[p * SW + kx * DW];
                }
            }
            if (has_zeros) {
                [[unroll]] for (int kx = 0; kx < KW; kx++) {
                    [[unroll]] for (int p = 0; p < PX; p++) x_acc[p] += v[p * SW + kx * DW];
                }
            }
            tap += KW;
            terms += KW;
            if (LONG && terms + KW > MOST_TERMS) {
                terms = 0;
                [[unroll]] for (int i = 0; i < ACCS; i++) {
                    total[i] += int(acc[i]);
                    acc[i] = 0.0;
                }
                [[unroll]] for (int p = 0; p < PX; p++) {
                    x_total[p] += int(x_acc[p]);
                    x_acc[p] = 0.0;
                }
            }
        }
    }
    if (!inside) return;
    [[unroll]] for (int p = 0; p < PX; p++) x_total[p] += int(x_acc[p]);
    [[unroll]] for (int c = 0; c < CO; c++) {
        int co = tile % co_tiles * CO + c;
        if (co < out_group) {
            co += group * out_group;
            ivec4 channel = channels[co];
            int out_row = ((image * c_out + co) * oh + oy) * ow + ox0;
            uint result = 0u;
            [[unroll]] for (int p = 0; p < PX; p++) {
                int i = c * PX + p;
                int sum = (LONG ? total[i] : 0) + int(acc[i]) - channel.x * x_total[p];
                result |= finished(sum, channel, y_zero) << (RESULT == 0 ? 0 : 8 * (p & 3));
                if (RESULT == 0) {
                    if (ox0 + p < ow) y[out_row + p] = result;
                    result = 0u;
                } else if ((p & 3) == 3) {
                    if (ox0 + p < ow) y[(out_row + p) >> 2] = result;
                    result = 0u;
                }
            }
        }
    }
}
