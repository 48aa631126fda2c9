// The larger and the smaller of two floats; NaN wins, the first where both are. Both are asked first: without a promise
// to keep NaN a driver may make a minimum of its own of ``p < q ? p : q``, which gives the number where the other is
// NaN (seen on NVIDIA where p is a constant).
float larger(float p, float q) { return isnan(p) ? p : isnan(q) ? q : p > q ? p : q; }
float smaller(float p, float q) { return isnan(p) ? p : isnan(q) ? q : p < q ? p : q; }
int larger(int p, int q) { return max(p, q); }
int smaller(int p, int q) { return min(p, q); }
