#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "recurrence.glsl"

// All steps of one sequence in one direction by a workgroup, which keeps the state in shared memory; LANES invocations
// share the sums of a unit.

// In one array, which takes as many bytes in whatever order a driver lays out shared memory.
shared vec4 sums_of[gl_WorkGroupSize.x];
shared float states[4 * HIDDEN];      // before and after a step, by turns, then two of the units:
const uint CELLS = 2 * uint(HIDDEN);  // of an LSTM c; of a GRU whose reset comes before the product, the update gate
const uint RESET = 3 * uint(HIDDEN);  // of that GRU the state times the reset

uint width, lane;

// Sums over k of the gates from first to end, in lane 0.
vec4 products(Unit u, bool inside, bool of_reset, uint before, uint first, uint end) {
    vec4 sums = vec4(0.0);
    if (inside) {
        for (uint k = lane; k < hidden; k += LANES) {
            float h = of_reset ? states[RESET + k] : states[before + k];
            for (uint gate = first; gate < end; gate++) sums[gate] += h * LOAD(r, r_index(u, k, gate));
        }
    }
    if (LANES > 1) {
        sums_of[gl_LocalInvocationID.x] = sums;
        barrier();
        for (uint j = 1; lane == 0 && j < LANES; j++) sums += sums_of[gl_LocalInvocationID.x + j * width];
        barrier();
    }
    return sums;
}

void main() {
    width = gl_WorkGroupSize.x / LANES;
    lane = gl_LocalInvocationID.x / width;
    uint column = gl_LocalInvocationID.x % width;
    uint row = flat_group();
    if (row * hidden >= units) return;
    Unit u = unit_at(row * hidden);
    for (uint k = gl_LocalInvocationID.x; k < hidden; k += gl_WorkGroupSize.x) {
        states[k] = begun(u, 0, k);
        if (CELL == LSTM) states[CELLS + k] = begun(u, 1, k);
    }
    barrier();
    for (uint step = 0; step < u.count; step++) {
        uint time = time_at(u, step);
        uint before = (step & 1u) * hidden;
        uint after = hidden - before;
        for (uint from = 0; from < hidden; from += width) {
            u.h = min(from + column, hidden - 1);
            bool inside = from + column < hidden;
            vec4 sums = products(u, inside, false, before, 0, RESET_FIRST ? 2 : GATES);
            if (!inside || lane > 0) continue;
            if (RESET_FIRST) {
                states[CELLS + u.h] = cell_function(0, x_at(u, time, 0) + sums[0]);
                states[RESET + u.h] = cell_function(0, x_at(u, time, 1) + sums[1]) * states[before + u.h];
                continue;
            }
            vec2 made = stepped(u, time, vec2(states[before + u.h], states[CELLS + u.h]), sums);
            states[after + u.h] = made.x;
            if (CELL == LSTM) states[CELLS + u.h] = made.y;
        }
        barrier();
        if (RESET_FIRST) {
            for (uint from = 0; from < hidden; from += width) {
                u.h = min(from + column, hidden - 1);
                bool inside = from + column < hidden;
                vec4 sums = products(u, inside, true, 0, 2, 3);
                if (!inside || lane > 0) continue;
                float z = states[CELLS + u.h];
                float g = cell_function(1, x_at(u, time, 2) + sums[2]);
                states[after + u.h] = (1.0 - z) * g + z * states[before + u.h];
            }
            barrier();
        }
        for (uint k = gl_LocalInvocationID.x; k < hidden; k += gl_WorkGroupSize.x) {
            STORE(y, y_index(u, time, k), states[after + k]);
        }
    }
    uint last = (u.count & 1u) * hidden;
    for (uint k = gl_LocalInvocationID.x; k < hidden; k += gl_WorkGroupSize.x) {
        STORE(state, state_index(u, 0, k), states[last + k]);
        if (CELL == LSTM) STORE(state, state_index(u, 1, k), states[CELLS + k]);
        for (uint time = u.count; time < steps; time++) STORE(y, y_index(u, time, k), 0.0);
    }
}
