#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "recurrence.glsl"

// One step of every sequence; LANES invocations share the sums of a unit. GATED is of a GRU whose reset comes before the
// product: PHASE 0 makes its gates, and the state times the reset; PHASE 1 the state from these.

#ifdef GATED
#define FIRST_GATE (PHASE == 0 ? 0 : 2)
#define END_GATE (PHASE == 0 ? 2 : 3)
#else
#define FIRST_GATE 0
#define END_GATE GATES
#endif

shared vec4 sums_of[gl_WorkGroupSize.x];

float h_before(Unit u, uint k) {
#ifdef GATED
    if (PHASE == 1) return gated[state_index(u, 1, k)];
#endif
    return step_at == 0 ? begun(u, 0, k) : LOAD(y, y_index(u, time_at(u, step_at - 1), k));
}

void main() {
    uint width = gl_WorkGroupSize.x / LANES;
    uint lane = gl_LocalInvocationID.x / width;
    uint index = flat_group() * width + gl_LocalInvocationID.x % width;
    Unit u = unit_at(min(index, units - 1));
    bool runs = index < units && step_at < u.count;
    vec4 sums = vec4(0.0);
    if (runs) {
        for (uint k = lane; k < hidden; k += LANES) {
            float h = h_before(u, k);
            for (uint gate = FIRST_GATE; gate < END_GATE; gate++) sums[gate] += h * LOAD(r, r_index(u, k, gate));
        }
    }
    if (LANES > 1) {
        sums_of[gl_LocalInvocationID.x] = sums;
        barrier();
        for (uint j = 1; lane == 0 && j < LANES; j++) sums += sums_of[gl_LocalInvocationID.x + j * width];
    }
    if (lane > 0 || index >= units) return;
    uint h_state = state_index(u, 0, u.h);
    uint c_state = state_index(u, 1, u.h);
    if (!runs) {
#ifdef GATED
        if (PHASE == 0) return;
#endif
        STORE(y, y_index(u, step_at, u.h), 0.0);
        if (step_at == 0) {  // a sequence without steps ends as it began
            STORE(state, h_state, begun(u, 0, u.h));
            if (CELL == LSTM) STORE(state, c_state, begun(u, 1, u.h));
        }
        return;
    }
    uint time = time_at(u, step_at);
#ifdef GATED
    if (PHASE == 0) {
        gated[h_state] = cell_function(0, x_at(u, time, 0) + sums[0]);
        gated[c_state] = cell_function(0, x_at(u, time, 1) + sums[1]) * h_before(u, u.h);
        return;
    }
    float old = step_at == 0 ? begun(u, 0, u.h) : LOAD(y, y_index(u, time_at(u, step_at - 1), u.h));
    float z = gated[h_state];
    float h = (1.0 - z) * cell_function(1, x_at(u, time, 2) + sums[2]) + z * old;
#else
    float c_old = CELL != LSTM ? 0.0 : step_at == 0 ? begun(u, 1, u.h) : LOAD(state, c_state);
    vec2 made = stepped(u, time, vec2(h_before(u, u.h), c_old), sums);
    float h = made.x;
    if (CELL == LSTM) STORE(state, c_state, made.y);
#endif
    STORE(y, y_index(u, time, u.h), h);
    if (step_at == u.count - 1) STORE(state, h_state, h);
}
