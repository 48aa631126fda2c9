"""The kernels of shaders/spatial."""

from vkconv.kernel import Form, Kernel, constants, fields, reads, updates, writes

AFFINE_GRID = Kernel(
    "affine_grid",
    bindings=(
        reads("ELEM theta"),
        writes("ELEM y"),
    ),
    push=(
        *fields("uint", "total places"),
        *fields("uint", "n[3]"),
    ),
    constants=(
        *constants("uint", RANK=2),  # spatial dimensions
        *constants("bool", ALIGN_CORNERS=False),
    ),
)

GRID_SAMPLE = Kernel(
    "grid_sample",
    bindings=(
        reads("ELEM x"),
        reads("ELEM grid"),
        writes("ELEM y"),
    ),
    push=(
        *fields("uint", "total channels places"),
        *fields("int", "n[3]"),
    ),
    constants=(
        *constants("uint", RANK=2),  # spatial dimensions
        *constants("uint", MODE=0, PADDING=0),
        *constants("bool", ALIGN_CORNERS=False),
    ),
)

NMS_COLLECT = Kernel(
    "nms_collect",
    bindings=(
        reads("uint found"),
        writes("uvec2 y"),
        writes("uvec2 count"),
    ),
    push=(*fields("uint", "lines classes most"),),
)

NMS_SELECT = Kernel(
    "nms_select",
    bindings=(
        reads("ELEM boxes"),
        reads("ELEM scores"),
        updates("uint keys"),  # of the scores of boxes that are left, 0 for the others
        updates("uint found"),  # boxes that were taken of each line: how many, then, behind all of these, which
    ),
    push=(
        # A line is a class of an image, of which a launch takes the boxes from begin to end of most.
        *fields("uint", "lines classes n most begin end"),
        *fields("float", "iou_threshold score_threshold"),
    ),
    constants=(*constants("bool", CENTERS=False, LIMITED=False),),
)

POOL2D = Kernel(
    "pool2d",
    bindings=(
        reads("ELEM x"),
        writes("ELEM y"),
    ),
    push=(
        *fields("uint", "planes"),
        *fields("int", "h w oh ow"),
        *fields("int", "kh kw sh sw dh dw"),
        *fields("int", "pt pl pb pr"),
        *fields("float", "p"),  # of the norm
    ),
    constants=(
        *constants("uint", KIND=0),
        *constants("bool", COUNT_PADDING=False),
    ),
)

POOL2D_ARGMAX = Kernel(
    "pool2d_argmax",
    bindings=(
        reads("ELEM x"),
        writes("uvec2 y"),
    ),
    push=(
        *fields("uint", "planes"),
        *fields("int", "h w oh ow"),
        *fields("int", "kh kw sh sw dh dw"),
        *fields("int", "pt pl"),
    ),
    constants=(*constants("bool", COLUMN_MAJOR=False),),
)

POOL2D_COLUMNS = Kernel(
    "pool2d_columns",
    bindings=(
        reads("ELEM x", "ELEM4 x4"),
        writes("ELEM y", "ELEM4 y4"),
    ),
    push=(
        *fields("uint", "planes"),
        *fields("int", "h w oh ow"),
        *fields("int", "sh dh"),
        *fields("int", "pt pb pr"),
    ),
    constants=(
        *constants("uint", KIND=0),
        *constants("bool", COUNT_PADDING=False),
        *constants("int", PX=4, KH=3, KW=3, SW=1, DW=1, LEFT=0),
        *constants("bool", X_VEC4=False, Y_VEC4=False),
    ),
)

POOL2D_TILES = Kernel(
    "pool2d_tiles",
    bindings=(
        reads("ELEM x", "uint x1", "uvec2 x2", "uvec4 x4", form=Form.ELEMENT),
        writes("ELEM y", "uint y1", "uvec2 y2", "uvec4 y4", form=Form.ELEMENT),
    ),
    push=(*fields("uint", "planes"),),
    constants=(
        *constants("uint", KIND=0),
        *constants("bool", COUNT_PADDING=False),
        *constants("int", RY=1, PX=4, X_WHOLE=1, Y_WHOLE=1),
        *constants("int", H=1, W=1, OH=1, OW=1, KH=3, KW=3, SH=1, SW=1, DH=1, DW=1),
        *constants("int", TOP=0, LEFT=0, BOTTOM=0, RIGHT=0),  # padding
    ),
)

RESAMPLE = Kernel(
    "resample",
    bindings=(
        reads("X_ELEM x"),
        writes("Y_ELEM y"),
    ),
    push=(
        *fields("uint", "total"),
        *fields("int", "n_in n_out"),
        *fields("uint", "inner"),
        *fields("int", "step offset unit"),
        *fields("int", "first taps"),  # from the pixel at or below that place; how many
        *fields("float", "squeeze"),  # below 1 the kernel is wider than a pixel
        *fields("float", "a beyond"),
    ),
    constants=(
        *constants("uint", MODE=0),
        *constants("bool", EXCLUDE_OUTSIDE=False, NORMALIZE=False, EXTRAPOLATE=False),
    ),
)

RESIZE = Kernel(
    "resize",
    bindings=(
        reads("ELEM x"),
        writes("ELEM y"),
    ),
    push=(
        *fields("uint", "invocations planes"),
        *fields("int", "in_h in_w out_h out_w"),
        *fields("int", "step_y offset_y unit_y"),
        *fields("int", "step_x offset_x unit_x"),
    ),
    constants=(
        *constants("uint", ITEMS=1),
        *constants("bool", LINEAR=False),
    ),
)

ROI_ALIGN = Kernel(
    "roi_align",
    bindings=(
        reads("ELEM x"),
        reads("ELEM rois"),
        reads("uint batch_indices"),  # of 64 bits, two words each
        writes("ELEM y"),
    ),
    push=(
        *fields("uint", "total images channels"),
        *fields("uint", "cells[2]"),
        *fields("int", "n[2]"),
        *fields("float", "scale offset"),
    ),
    constants=(
        *constants("uint", SAMPLES=0, MOST_SIDES=1),
        *constants("bool", LARGEST=False, AT_LEAST_ONE=False),
    ),
)
