// Taps t of a window that lie on the input, 0 <= first + t step < extent, as [x, y); empty when y <= x.
ivec2 taps_inside(int first, int step, int count, int extent) {
    int begin = first < 0 ? (step - 1 - first) / step : 0;
    int end = first < extent ? min(count, (extent - 1 - first) / step + 1) : 0;
    return ivec2(begin, end);
}
