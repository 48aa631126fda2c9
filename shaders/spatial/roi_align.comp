#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "extremes.glsl"

// The pixel at or before a coordinate, the one behind it, and the share of the latter; of what is outside, the border.
void neighbours(float v, int extent, out int low, out int high, out float share) {
    v = v > 0.0 ? v : 0.0;
    low = min(int(v), extent - 1);
    high = min(low + 1, extent - 1);
    share = low == high ? 0.0 : v - float(low);
}

// Samples along a side of a cell: those asked for, or one for each pixel that it begins; -1 where they are too many.
int samples_of(float side, int cells) {
    if (SAMPLES > 0) return int(SAMPLES);
    if (!(side < float(int(MOST_SIDES) * max(n[0], n[1])))) return -1;
    int count = int(ceil((side > 0.0 ? side : 0.0) / float(cells)));
    return count > 0 && float(count - 1) * float(cells) >= side ? count - 1 : count;
}

// Whether a region has an end. Of ``start + side`` drivers make the end that the side came from, a number.
bool ends(float start, float side) {
    bool apart = isinf(start) && isinf(side) && (start > 0.0) != (side > 0.0);
    return !isnan(start) && !isnan(side) && !apart;
}

void main() {
    uint i = flat_index();
    if (i >= total) return;
    uint place = i % (cells[0] * cells[1]);
    uint plane = i / (cells[0] * cells[1]);
    uint roi = plane / channels;
    uint channel = plane - roi * channels;
    ivec2 cell = ivec2(place / cells[1], place % cells[1]);

    float starts[2];
    float sides[2];
    int counts[2];
    bool known = true;
    for (int d = 0; d < 2; d++) {
        float start = LOAD(rois, 4 * roi + 1 - d) * scale - offset;
        float side = LOAD(rois, 4 * roi + 3 - d) * scale - offset - start;
        if (AT_LEAST_ONE && side < 1.0) side = 1.0;
        starts[d] = start;
        sides[d] = side;
        counts[d] = samples_of(side, int(cells[d]));
        known = known && counts[d] >= 0 && ends(start, side);
    }
    uint image = batch_indices[2 * roi];
    if (batch_indices[2 * roi + 1] != 0u || image >= images || !known) {
        STORE(y, i, uintBitsToFloat(0x7FC00000u));
        return;
    }
    uint base = (image * channels + channel) * uint(n[0] * n[1]);
    float result = 0.0;
    bool first = true;
    for (int row = 0; row < counts[0]; row++) {
        float at_y = starts[0] + sides[0] * (float(cell.x) + (float(row) + 0.5) / float(counts[0])) / float(cells[0]);
        for (int column = 0; column < counts[1]; column++) {
            float at_x =
                starts[1] + sides[1] * (float(cell.y) + (float(column) + 0.5) / float(counts[1])) / float(cells[1]);
            bool inside = at_y >= -1.0 && at_y <= float(n[0]) && at_x >= -1.0 && at_x <= float(n[1]);
            vec4 parts = vec4(0.0);
            if (inside) {
                ivec2 low, high;
                vec2 share;
                neighbours(at_y, n[0], low.x, high.x, share.x);
                neighbours(at_x, n[1], low.y, high.y, share.y);
                parts = vec4(LOAD(x, base + uint(low.x * n[1] + low.y)) * (1.0 - share.x) * (1.0 - share.y),
                             LOAD(x, base + uint(low.x * n[1] + high.y)) * (1.0 - share.x) * share.y,
                             LOAD(x, base + uint(high.x * n[1] + low.y)) * share.x * (1.0 - share.y),
                             LOAD(x, base + uint(high.x * n[1] + high.y)) * share.x * share.y);
            }
            if (LARGEST) {
                float most = larger(larger(parts.x, parts.y), larger(parts.z, parts.w));
                result = first ? most : larger(result, most);
                first = false;
            } else {
                result += parts.x + parts.y + parts.z + parts.w;
            }
        }
    }
    STORE(y, i, LARGEST ? result : result / float(max(1, counts[0] * counts[1])));
}
