// Sums that every lane of a workgroup has meet in shared memory, MEET of them at a time and always in the same order:
// the lanes put theirs into sums[j * LANES + lane], then a barrier, add_up and a barrier, then met. LANES and MEET are
// powers of two.
const int SHARE = LANES / MEET;  // lanes that add the values of one sum

shared float sums[MEET * LANES];

// Which of the sums a lane has a share of.
int shared_sum(int lane) { return lane / SHARE; }

// The lane's share of its sum. A lane overwrites only what it alone has read.
void add_up(int lane) {
    int mine = lane / SHARE * LANES + lane % SHARE;
    float sum = 0.0;
    for (int i = 0; i < MEET; i++) sum += sums[mine + i * SHARE];
    sums[mine] = sum;
}

// Sum ``j``, of the shares.
float met(int j) {
    float sum = 0.0;
    for (int s = 0; s < SHARE; s++) sum += sums[j * LANES + s];
    return sum;
}
