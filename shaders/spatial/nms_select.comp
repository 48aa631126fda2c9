#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "reduction.glsl"

// Boxes of one class of one image, in a workgroup: again and again the best of those left, which takes those that it
// overlaps too much with it. A lane has every so many boxes, and is the only one to touch what is kept of them.

const uvec2 NOTHING = uvec2(0u, 0xFFFFFFFFu);
uvec2 better(uvec2 p, uvec2 q) {
    bool first = p.x > q.x || (p.x == q.x && p.y < q.y);
    return first ? p : q;
}
#define BETTER(p, q) better(p, q)
REDUCTION_SPACE(space, uvec2)
REDUCTION(best_of_all, uvec2, space, BETTER)

// The corners of a box, the smaller ones first.
vec4 box_at(uint i) {
    vec4 box = vec4(LOAD(boxes, 4 * i), LOAD(boxes, 4 * i + 1), LOAD(boxes, 4 * i + 2), LOAD(boxes, 4 * i + 3));
    if (CENTERS) return vec4(box.xy - 0.5 * box.zw, box.xy + 0.5 * box.zw);
    return vec4(min(box.xy, box.zw), max(box.xy, box.zw));
}

float area(vec4 box) { return (box.z - box.x) * (box.w - box.y); }

bool overlaps(vec4 p, vec4 q) {
    vec2 sides = min(p.zw, q.zw) - max(p.xy, q.xy);
    if (!(sides.x > 0.0 && sides.y > 0.0)) return false;
    float shared_area = sides.x * sides.y;
    return shared_area / (area(p) + area(q) - shared_area) > iou_threshold;
}

// A score as a key of the same order, 0 for none that counts.
uint key_of(uint i) {
    float score = LOAD(scores, i);
    if (isnan(score) || (LIMITED && !(score > score_threshold))) return 0u;
    return ordered(score == 0.0 ? 0.0 : score);
}

void main() {
    uint lane = gl_LocalInvocationID.x;
    uint line = flat_group();
    if (line >= lines) return;
    uint first_box = line / classes * n;
    uint first = line * n;
    uvec2 best = NOTHING;
    // A launch behind others goes on where they ended, if they took as many as they could.
    if (begin > 0 && found[line] < begin) return;
    for (uint i = lane; i < n; i += gl_WorkGroupSize.x) {
        uint key = begin > 0 ? keys[first + i] : key_of(first + i);
        if (begin == 0) keys[first + i] = key;
        best = better(best, uvec2(key, i));
    }
    uint taken = begin;
    for (; taken < end; taken++) {
        uvec2 next = best_of_all(best);
        if (next.x == 0u) break;
        if (lane == 0) found[lines + line * most + taken] = next.y;
        vec4 box = box_at(first_box + next.y);
        best = NOTHING;
        for (uint i = lane; i < n; i += gl_WorkGroupSize.x) {
            uint key = keys[first + i];
            if (key == 0u) continue;
            if (i == next.y || overlaps(box, box_at(first_box + i))) keys[first + i] = 0u;
            else best = better(best, uvec2(key, i));
        }
    }
    if (lane == 0) found[line] = taken;
}
