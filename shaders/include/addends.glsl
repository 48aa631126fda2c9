// What is added to a product before it is activated and reduced. With BROADCAST that is one operand or two, each of which
// may repeat along any dimension of the product (vkconv/ops/fused/addends.py says where its numbers lie); else the
// residual, which lies as the product would. ``outer`` is the batch or image, ``column`` the column or pixel.
#ifdef BROADCAST

// Strides over batches, which repeat after ``outer_count`` runs of ``outer_run``, over rows, and over lines of columns.
int place_of_addend(int outer, int row, int column, ivec3 outer_run_count_step, int row_step, ivec3 width_line_step) {
    int batch = outer / outer_run_count_step.x % outer_run_count_step.y * outer_run_count_step.z;
    int line = column / width_line_step.x;
    return batch + row * row_step + line * width_line_step.y + (column - line * width_line_step.x) * width_line_step.z;
}

// ``to`` is the place in the product.
float added_at(int to, int outer, int row, int column) {
    int at = place_of_addend(outer, row, column, ivec3(FIRST_RUN, FIRST_COUNT, FIRST_OUTER), FIRST_ROW,
                             ivec3(FIRST_WIDTH, FIRST_LINE, FIRST_COLUMN));
    float sum = LOAD(residual, at);
    if (HAS_SECOND) {
        at = place_of_addend(outer, row, column, ivec3(SECOND_RUN, SECOND_COUNT, SECOND_OUTER), SECOND_ROW,
                             ivec3(SECOND_WIDTH, SECOND_LINE, SECOND_COLUMN));
        sum += LOAD(residual2, at);
    }
    return sum;
}
#else
float added_at(int to, int outer, int row, int column) { return residual_at(to); }
#endif
