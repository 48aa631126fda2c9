#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "walk.glsl"
#ifdef EPILOGUE
#include "epilogue.glsl"
#endif

// x at offsets and strides in zeros, from the side of the output: every element of y is written once, by an invocation
// that looks for the element of x that lies there. With EPILOGUE y is act(that + bias), also where there is none.

// Index of x for index o of y along a dimension; -1 where none lies there.
int source(uint d, int o) {
    int i = o - offset[d];
    int q = SHIFT ? i >> s[d] : i / s[d];
    int back = SHIFT ? q << s[d] : q * s[d];
    return i >= 0 && back == i && q < x_n[d] ? q : -1;
}

void main() {
    uint index = flat_index();
    if (index >= invocations) return;
    uint row = walk_row(index, chunk);
    int lane = int(index - row * chunk);
    uint to = row * n[RANK - 1];
    int inner = x_n[RANK - 1];
    int from = 0;
    int stride = inner;
    bool inside = true;
    uint outermost = row;
    for (uint d = RANK - 1; d > 0; d--) {
        uint q = d > 1 ? row / n[d - 1] : 0u;
        int i = source(d - 1, int(row - q * n[d - 1]));
        inside = inside && i >= 0;
        from += i * stride;
        stride *= x_n[d - 1];
        outermost = row;
        row = q;
    }
#ifdef EPILOGUE
    Channel channel = channel_at(int(outermost % channels), int(channels));
#endif
    for (uint k = 0; k < ITEMS; k++) {
        int o = lane + int(k * chunk);
        if (o >= int(n[RANK - 1])) continue;
        int i = inside ? source(RANK - 1, o) : -1;
#ifdef EPILOGUE
        float value = i >= 0 ? LOAD_X(x, from + i) : 0.0;
        STORE(y, to + o, finished(value, channel, act_a, act_b));
#else
        STORE(y, to + o, i >= 0 ? LOAD_X(x, from + i) : VALUE(0));
#endif
    }
}
