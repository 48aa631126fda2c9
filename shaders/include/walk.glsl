// Walk over a merged index space (vkconv/ops/kernels/strided.py): the row split.
// The push block starts with `uint invocations, chunk;` and has `uint n[8];`.

// Row of the inner dimension that an invocation works on; 0 without a division in the rank-1 case.
uint walk_row(uint index, uint chunk) {
    return RANK == 1 ? 0u : index / chunk;
}
