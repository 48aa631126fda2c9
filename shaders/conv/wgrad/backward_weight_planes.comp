#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#extension GL_EXT_control_flow_attributes : require
#include "backward_weight_store.glsl"

// One input channel per group: a workgroup makes the taps of one output channel, of a slice of its units. A unit is a
// plane of dy of an image, or a band of BAND of its rows, and the rows of x that it meets: two ranges of elements, which
// neighbouring lanes copy into shared memory as they lie, by vectors of four; dy only where it is STAGED, else lanes load
// it as they need it. UNITS are copied at a time; while lanes multiply, the next ones are on their way to their
// registers. An item is RY x PX neighbouring pixels of dy, whose rows are whole PX. Where taps leave the plane they meet
// the zero in front of the ranges of x, to which masks lead them: no load is tested.
const int BANDS = (OH + BAND - 1) / BAND;
const int ROW_BLOCKS = (BAND + RY - 1) / RY;
const int COLUMN_BLOCKS = OW / PX;
const int ITEMS = UNITS * ROW_BLOCKS * COLUMN_BLOCKS;
const int TAPS = KH * KW;
const int ROWS = (RY - 1) * SH + (KH - 1) * DH + 1;
const int SPAN = (PX - 1) * SW + (KW - 1) * DW + 1;
const bool WHOLE = BAND % RY + OH % BAND == 0;
// Vectors that a lane copies of x and of dy.
const int X_COPIES = (UNITS * X_VEC4S + LANES - 1) / LANES;
const int DY_COPIES = STAGED * ((UNITS * DY_VEC4S + LANES - 1) / LANES);
// Whether the last vector of all may be in part of nothing.
const bool X_RAGGED = H * W % 4 != 0;
const bool DY_RAGGED = OH * OW % 4 != 0;

// The first element of inputs is the zero. Sizes are whole vectors, so that each array begins with one.
shared float inputs[4 + UNITS * X_STRIDE];
shared float gradients[STAGED == 1 ? UNITS * DY_STRIDE : 4];

#include "backward_weight_taps.glsl"

// All bits set where an index is inside, none where it is not.
int mask_of(int index, int extent) { return -int(uint(index) < uint(extent)); }

int band_of(int unit) { return BANDS == 1 ? 0 : unit % BANDS; }

// The row of x that the range of a band begins with, and the one behind its last.
int top_of(int band) { return BANDS == 1 ? 0 : clamp(band * BAND * SH - PT, 0, H); }
int bottom_of(int band, int top) {
    return BANDS == 1 ? H : clamp((band * BAND + BAND - 1) * SH - PT + (KH - 1) * DH + 1, top, H);
}

// First elements of the ranges of a unit.
int x_from(int unit, int channel) { return ((unit / BANDS * c_in + channel) * H + top_of(band_of(unit))) * W; }
int dy_from(int unit, int channel) { return ((unit / BANDS * c_out + channel) * OH + band_of(unit) * BAND) * OW; }

// What is on its way: vectors of units from one on, and before the end of the slice.
vec4 next_x[X_COPIES];
vec4 next_dy[STAGED == 1 ? DY_COPIES : 1];

// Of the vectors that a lane copies, which unit one is of, and where in its range it is.
int x_part(int i) { return UNITS == 1 ? 0 : i / X_VEC4S; }
int dy_part(int i) { return UNITS == 1 ? 0 : i / DY_VEC4S; }

// What is loaded beyond a range is of others, or is there twice.
void load_units(int from, int end, int lane, int channel, int x_channel) {
    int x_vec4s = n * c_in * H * W / 4;
    int dy_vec4s = n * c_out * OH * OW / 4;
    if (x_vec4s > 0) {
        [[unroll]] for (int q = 0; q < X_COPIES; q++) {
            int i = q * LANES + lane;
            int part = x_part(i);
            int at = x_from(min(from + part, end - 1), x_channel) / 4 + i - part * X_VEC4S;
            next_x[q] = LOAD4(x4, min(at, x_vec4s - 1));
        }
    }
    if (dy_vec4s > 0) {
        [[unroll]] for (int q = 0; q < DY_COPIES; q++) {
            int i = q * LANES + lane;
            int part = dy_part(i);
            int at = dy_from(min(from + part, end - 1), channel) / 4 + i - part * DY_VEC4S;
            next_dy[q] = LOAD4(dy4, min(at, dy_vec4s - 1));
        }
    }
}

// Puts them into shared memory. The elements behind the last whole vector of all are loaded one by one.
void keep_units(int from, int end, int lane, int channel, int x_channel) {
    [[unroll]] for (int q = 0; q < X_COPIES; q++) {
        int i = q * LANES + lane;
        int part = x_part(i);
        if (i < UNITS * X_VEC4S) {
            if (X_RAGGED) {
                int at = x_from(min(from + part, end - 1), x_channel) / 4 * 4 + 4 * (i - part * X_VEC4S);
                int left = n * c_in * H * W - at;
                [[unroll]] for (int j = 0; j < 3; j++) {
                    if (left < 4 && j < left) next_x[q][j] = LOAD(x, at + j);
                }
            }
            int to = 4 + part * X_STRIDE + 4 * (i - part * X_VEC4S);
            [[unroll]] for (int j = 0; j < 4; j++) inputs[to + j] = next_x[q][j];
        }
    }
    [[unroll]] for (int q = 0; q < DY_COPIES; q++) {
        int i = q * LANES + lane;
        int part = dy_part(i);
        if (i < UNITS * DY_VEC4S) {
            if (DY_RAGGED) {
                int at = dy_from(min(from + part, end - 1), channel) / 4 * 4 + 4 * (i - part * DY_VEC4S);
                int left = n * c_out * OH * OW - at;
                [[unroll]] for (int j = 0; j < 3; j++) {
                    if (left < 4 && j < left) next_dy[q][j] = LOAD(dy, at + j);
                }
            }
            int to = part * DY_STRIDE + 4 * (i - part * DY_VEC4S);
            [[unroll]] for (int j = 0; j < 4; j++) gradients[to + j] = next_dy[q][j];
        }
    }
}

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int index = int(flat_group());
    if (index >= slice_count * c_out) return;
    int channel = index % c_out;
    int x_channel = channel / multiplier;
    int slice = index / c_out;
    int units = n * BANDS;
    int share = (units + slice_count - 1) / slice_count;
    int end = min(units, slice * share + share);

    if (lane == 0) inputs[0] = 0.0;
    float acc[TAPS];
    [[unroll]] for (int i = 0; i < TAPS; i++) acc[i] = 0.0;
    if (slice * share < end) load_units(slice * share, end, lane, channel, x_channel);
    for (int base = slice * share; base < end; base += UNITS) {
        keep_units(base, end, lane, channel, x_channel);
        barrier();
        if (base + UNITS < end) load_units(base + UNITS, end, lane, channel, x_channel);
        for (int i = lane; i < ITEMS; i += LANES) {
            int part = i / (COLUMN_BLOCKS * ROW_BLOCKS);
            int unit = base + part;
            int band = band_of(unit);
            int ox0 = i % COLUMN_BLOCKS * PX;
            int oy0 = i / COLUMN_BLOCKS % ROW_BLOCKS * RY;  // in the band
            int rows = min(BAND, OH - band * BAND) - oy0;
            if (unit >= end || rows <= 0) break;
            int top = top_of(band);
            int height = bottom_of(band, top) - top;
            int iy0 = (band * BAND + oy0) * SH - PT - top;
            int ix0 = ox0 * SW - PL;
            int x_at = 4 + part * X_STRIDE + x_from(unit, x_channel) % 4 + iy0 * W + ix0;
            int dy_row = dy_from(unit, channel);
            int dy_at = (STAGED == 1 ? part * DY_STRIDE + dy_row % 4 : dy_row) + oy0 * OW + ox0;
            int column_masks[SPAN];
            [[unroll]] for (int s = 0; s < SPAN; s++) column_masks[s] = mask_of(ix0 + s, W);
            float u[RY * PX];
            [[unroll]] for (int o = 0; o < RY; o++) {
                int row = WHOLE ? o : min(o, rows - 1);
                [[unroll]] for (int p = 0; p < PX; p++) {
                    int at = dy_at + row * OW + p;
                    if (STAGED == 1) u[o * PX + p] = gradients[at];
                    else u[o * PX + p] = LOAD(dy, at);
                }
            }
            [[unroll]] for (int r = 0; r < ROWS; r++) {
                int row_mask = mask_of(iy0 + r, height);
                float v[SPAN];
                [[unroll]] for (int s = 0; s < SPAN; s++) {
                    int at = x_at + r * W + s & row_mask & column_masks[s];
                    v[s] = inputs[at];
                }
                [[unroll]] for (int o = 0; o < RY; o++) {
                    int reach = r - o * SH;
                    if (reach >= 0 && reach % DH == 0 && reach / DH < KH) {
                        // A row that is not there may meet an input that is no number.
                        if (WHOLE || o < rows) {
                            [[unroll]] for (int p = 0; p < PX; p++) {
                                [[unroll]] for (int kx = 0; kx < KW; kx++) {
                                    acc[reach / DH * KW + kx] += u[o * PX + p] * v[p * SW + kx * DW];
                                }
                            }
                        }
                    }
                }
            }
        }
        barrier();
    }
    store_taps(acc, lane, slice, channel, c_out * TAPS);
}
