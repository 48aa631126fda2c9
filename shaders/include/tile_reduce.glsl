// The end of a product by tiles (gemm_tile.glsl) that is reduced along its columns: each lane combines its finished
// values by four neighbouring columns, shared memory holds these for 4 * LANES_M rows of the tile at a time, and an
// invocation for each row combines them from the first to the last. Columns lie in segments of ``extent``, a multiple
// of 4, and each segment is reduced on its own.
#include "reduced.glsl"

const int CHUNK_ROWS = 4 * LANES_M;

shared float partials[BN / 4 * CHUNK_ROWS];  // [BN / 4][CHUNK_ROWS]

// The slot of columns 4 * j on in row r of a chunk, of a lane.
int partial_at(int lane, int r, int j) { return (j * LANES_N + lane % LANES_N) * CHUNK_ROWS + lane / LANES_N * 4 + r; }

// The rows of a chunk, for each segment that the tile touches. Row 0 of the chunk is row ``row`` of ``rows``. With
// TO_PARTS it goes to y[at], ``step`` further on for each segment of the tile; else it is row ``at`` of ``step``, and y
// is [segments / lines][step][lines].
void reduce_chunk(
    int reduction, int lane, int column, int extent, int segments, int row, int rows, int at, int step, int lines, float divisor) {
    barrier();
    int first = column / extent;
    int count = min((column + BN - 1) / extent, segments - 1) - first + 1;
    for (int task = lane; task < CHUNK_ROWS * count; task += LANES) {
        int r = task % CHUNK_ROWS;
        int segment = first + task / CHUNK_ROWS;
        int from = max(segment * extent - column, 0) / 4;
        int to = min((segment + 1) * extent - column, BN) / 4;
        float total = nothing(reduction);
        for (int i = from; i < to; i++) total = combined(reduction, total, partials[i * CHUNK_ROWS + r]);
        int place = TO_PARTS ? at + (segment - first) * step + r
                             : (segment / lines * step + at + r) * lines + segment % lines;
        if (row + r < rows) put(reduction, place, total, divisor);
    }
    barrier();
}
