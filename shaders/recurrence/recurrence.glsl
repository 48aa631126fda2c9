// A step of a recurrent cell: what its gates make of sums of products, for one unit of one sequence. Gates lie as ONNX
// orders them: LSTM input, output, forget, cell; GRU update, reset, hidden; RNN one.
#include "activation.glsl"

const uint LSTM = 0;
const uint GRU = 1;
const uint GATES = CELL == LSTM ? 4 : CELL == GRU ? 3 : 1;
// Numbers of functions: those of activation.glsl that ONNX gives to cells, and two that only cells have. Of the whole
// table a driver would compile a copy for each gate.
const uint RELU = 1;
const uint HARD_SIGMOID = 5;
const uint SIGMOID = 6;
const uint LEAKY_RELU = 8;
const uint TANH = 11;
const uint ELU = 12;
const uint SOFTPLUS = 15;
const uint SOFTSIGN = 16;
const uint THRESHOLDED_RELU = 18;
const uint AFFINE = 1000;
const uint SCALED_TANH = 1001;

struct Unit {
    uint d, n, h;
    uint count;  // steps of the sequence
};

Unit unit_at(uint index) {
    Unit u;
    u.h = index % hidden;
    u.n = index / hidden % batch;
    u.d = index / hidden / batch;
    u.count = HAS_LENGTHS ? uint(clamp(lengths[u.n], 0, int(steps))) : steps;
    return u;
}

// Where the sequence is at a step: from its own end where it runs backwards.
uint time_at(Unit u, uint step) { return REVERSED || u.d == 1 ? u.count - 1 - step : step; }
uint x_index(Unit u, uint time, uint gate) {
    return (((time * batch + u.n) * directions + u.d) * GATES + gate) * hidden + u.h;
}
uint r_index(Unit u, uint k, uint gate) { return ((u.d * hidden + k) * GATES + gate) * hidden + u.h; }
uint y_index(Unit u, uint time, uint k) { return ((time * directions + u.d) * batch + u.n) * hidden + k; }
uint state_index(Unit u, uint part, uint k) { return ((part * directions + u.d) * batch + u.n) * hidden + k; }
float begun(Unit u, uint part, uint k) { return HAS_INITIAL ? LOAD(initial, state_index(u, part, k)) : 0.0; }

float bounded(float v) { return CLIP ? clip(v, -clip_at, clip_at) : v; }
// Function 0, 1 or 2 of the cell, which ONNX calls f, g and h. The first two are of gates, whose sums are clipped; the
// cell that h is of is not.
float cell_function(uint which, float v) {
    uint id = which == 0 ? FUNCTION0 : which == 1 ? FUNCTION1 : FUNCTION2;
    if (which < 2) v = bounded(v);
    float a = act_a[which];
    float b = act_b[which];
    switch (id) {
    case SIGMOID: return sigmoid(v);
    case TANH: return tanh_f32(v);
    case RELU: return relu(v);
    case HARD_SIGMOID: return hard_sigmoid(v, a, b);
    case LEAKY_RELU: return leaky_relu(v, a);
    case ELU: return elu(v, a);
    case SOFTPLUS: return softplus(v);
    case SOFTSIGN: return v / (1.0 + abs(v));
    case THRESHOLDED_RELU: return isnan(v) || v > a ? v : 0.0;
    case AFFINE: return a * v + b;
    case SCALED_TANH: return a * tanh_f32(b * v);
    }
    return v;
}

float x_at(Unit u, uint time, uint gate) { return LOAD(x, x_index(u, time, gate)); }

#ifndef GATED
float extra_at(Unit u, uint part) {
    return HAS_EXTRA ? LOAD(extra, (u.d * (CELL == LSTM ? 3 : 1) + part) * hidden + u.h) : 0.0;
}

// The new state (h, c) of a unit from the old one and the sums of h R for each gate.
vec2 stepped(Unit u, uint time, vec2 old, vec4 sums) {
    if (CELL == LSTM) {
        float i = cell_function(0, x_at(u, time, 0) + sums[0] + extra_at(u, 0) * old.y);
        float f = INPUT_FORGET ? 1.0 - i : cell_function(0, x_at(u, time, 2) + sums[2] + extra_at(u, 2) * old.y);
        float g = cell_function(1, x_at(u, time, 3) + sums[3]);
        float c = f * old.y + i * g;
        float o = cell_function(0, x_at(u, time, 1) + sums[1] + extra_at(u, 1) * c);
        return vec2(o * cell_function(2, c), c);
    }
    if (CELL == GRU) {
        float z = cell_function(0, x_at(u, time, 0) + sums[0]);
        float r = cell_function(0, x_at(u, time, 1) + sums[1]);
        float g = cell_function(1, x_at(u, time, 2) + r * (sums[2] + extra_at(u, 0)));
        return vec2((1.0 - z) * g + z * old.x, 0.0);
    }
    return vec2(cell_function(0, x_at(u, time, 0) + sums[0]), 0.0);
}
#endif
