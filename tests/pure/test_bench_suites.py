"""What is to be measured: MIOpen lines, tables of convolutions, suites, and the routes asked for."""

import pytest

from vkconv.bench.miopen import is_miopen, miopen_calls
from vkconv.bench.runner import Routes, make_tasks
from vkconv.bench.suites import (
    CSV_COLUMNS,
    Entry,
    merge,
    merge_alike,
    model_entries,
    parse_entries,
    read_suite,
    shipped_suites,
)
from vkconv.cli.bench import parse_local
from vkconv.core import DType, GraphError, UsageError
from vkconv.device import load_device
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call

LINE = "conv -n 2 -c 8 -H 15 -W 13 -k 12 -y 3 -x 5 -p 1 -q 2 -u 2 -v 1 -l 1 -j 2 -g 4"
FORWARD = "conv2d:x=2x8x15x13,w=12x2x3x5,s=2x1,p=1x2x1x2,d=1x2,g=4,dtype=f32"
BY_DATA = "conv2d_backward_data:dy=2x12x8x9,w=12x2x3x5,x_shape=2x8x15x13,s=2x1,p=1x2x1x2,d=1x2,g=4,dtype=f32"
BY_WEIGHT = "conv2d_backward_weight:x=2x8x15x13,dy=2x12x8x9,w_shape=12x2x3x5,s=2x1,p=1x2x1x2,d=1x2,g=4,dtype=f32"


@pytest.mark.parametrize(
    ("mask", "calls"),
    [
        (0, [FORWARD, BY_DATA, BY_WEIGHT]),
        (1, [FORWARD]),
        (2, [BY_DATA]),
        (3, [FORWARD, BY_DATA]),
        (4, [BY_WEIGHT]),
        (5, [FORWARD, BY_WEIGHT]),
        (6, [BY_DATA, BY_WEIGHT]),
        (7, [FORWARD, BY_DATA, BY_WEIGHT]),
    ],
)
def test_the_directions_of_a_miopen_line_are_a_mask(mask, calls):
    assert [call for call, _ in miopen_calls(f"{LINE} -F {mask}")] == calls


def test_a_miopen_line_without_directions_means_all_of_them():
    assert miopen_calls(LINE) == miopen_calls(f"{LINE} -F 0")


@pytest.mark.parametrize(
    ("name", "dtype"), [("conv", "f32"), ("convfp16", "f16"), ("convbfp16", "bf16"), ("convint8", "i8")]
)
def test_the_first_word_of_a_miopen_line_is_its_element_type(name, dtype):
    ((call, _),) = miopen_calls(f"./bin/MIOpenDriver {name} -n 1 -c 3 -H 8 -W 8 -k 4 -y 1 -x 1 -F 1")
    assert call == f"conv2d:x=1x3x8x8,w=4x3x1x1,dtype={dtype}"


def test_long_flags_and_those_that_say_how_to_measure_are_read():
    line = "conv --batchsize 1 --in_channels=3 -H 8 -W 8 -k 4 -y 1 -x 1 --forw 1 --iter 100 -t 1 -V 0"
    assert miopen_calls(line) == [("conv2d:x=1x3x8x8,w=4x3x1x1,dtype=f32", "")]


@pytest.mark.parametrize(
    ("flags", "call", "note"),
    [
        ("-F 1 -I NHWC -O NHWC -f NHWC", "conv2d:x=1x8x9x6,w=4x3x1x3,g=2,layout=NHWC,w_layout=KYXC", ""),
        ("-F 1 -I NHWC -O NHWC", "conv2d:x=1x8x9x6,w=4x3x3x1,g=2,layout=NHWC", ""),
        (
            "-F 2 -I NHWC -O NHWC -f NHWC",
            "conv2d_backward_data:dy=1x6x9x4,w=4x3x1x3,x_shape=1x8x9x6,g=2,layout=NHWC,w_layout=KYXC",
            "",
        ),
        (
            "-F 4 -f NHWC",
            "conv2d_backward_weight:x=1x6x8x9,dy=1x4x6x9,w_shape=4x3x1x3,g=2,w_layout=KYXC",
            "",
        ),
        (
            "-F 1 -m trans -I NHWC -O NHWC -f NHWC",
            "conv_transpose2d:x=1x8x9x6,w=6x3x1x2,g=2,layout=NHWC,w_layout=CYXK",
            "",
        ),
        (
            "-F 1 -O NHWC",
            "conv2d:x=1x6x8x9,w=4x3x3x1,g=2",
            "measured with both in NCHW; the line has -I NCHW and -O NHWC",
        ),
    ],
)
def test_a_line_in_another_layout_is_a_call_in_that_layout(flags, call, note):
    ((text, said),) = miopen_calls(f"conv -n 1 -c 6 -H 8 -W 9 -k 4 -y 3 -x 1 -g 2 {flags}")
    assert parse_call(text, OPS) == parse_call(call, OPS) and said == note


def test_a_transposed_line_has_its_weights_by_input_channel_and_its_gradient_is_a_convolution():
    calls = [c for c, _ in miopen_calls("conv -m trans -n 1 -c 64 -H 28 -W 28 -k 32 -y 4 -x 4 -p 1 -q 1 -u 2 -v 2")]
    assert calls == [
        "conv_transpose2d:x=1x64x28x28,w=64x32x4x4,s=2x2,p=1x1x1x1,dtype=f32",
        "conv2d:x=1x32x56x56,w=64x32x4x4,s=2x2,p=1x1x1x1,dtype=f32",
        "conv2d_backward_weight:x=1x32x56x56,dy=1x64x28x28,w_shape=64x32x4x4,s=2x2,p=1x1x1x1,dtype=f32",
    ]
    (entry,) = parse_entries(calls[1])
    assert entry.call.shape("y") == (1, 64, 28, 28)  # the gradient by x has the shape of x


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("conv -n 1 -c 3 -H 8 -W 8 -k 4 -y 3 -x 3 -Q 4 --in_layuot NHWC", ["'-Q'", "--in_layuot", "--in_layout"]),
        ("conv -n 1 -c 3", ["-H (in_h) is missing", "-x (fil_w) is missing"]),
        ("conv -n 1 -c 3 -H 8 -W x -k 4 -y 3 -x 3", ["-W (in_w) is 'x'"]),
        ("conv -n 1 -c 3 -H 8 -W 8 -k 4 -y 3 -x 3 -F 8", ["-F (forw) is 8"]),
        ("conv -n 1 -c 3 -H 8 -W 8 -k 4 -y 9 -x 3", ["kernel does not fit 8x8"]),
        ("conv -n 1 -c 3 -H 8 -W 8 -k 4 -y 3 -x 3 -g 2", ["do not divide into 2 groups"]),
        ("conv -n 1 -c 3 -H 8 -W 8 -k 4 -y 3 -x 3 -u 0", ["at least 1"]),
        ("conv -n 1 -c 3 -H 8 -W 8 -k 4 -y 3 -x 3 -m same", ["-m (mode) is 'same'", "conv or trans"]),
        ("conv -n 1 -c 3 -H 8 -W 8 -k 4 -y 3 -x 3 -_ 3", ["-_ (spatial_dim) is '3'"]),
        ("MIOpenDriver pool -n 1", ["begins with one of conv"]),
    ],
)
def test_what_is_wrong_with_a_miopen_line_is_named(line, words):
    with pytest.raises(UsageError) as error:
        miopen_calls(line)
    assert all(word in str(error.value) for word in words), error.value


def test_a_call_string_is_no_miopen_line():
    assert is_miopen("convfp16 -n 1") and is_miopen("bin/MIOpenDriver conv") and not is_miopen("conv2d:x=1x3x8x8")
    assert not is_miopen("conv") and not is_miopen("")


def test_the_element_type_can_be_replaced():
    (entry,) = parse_entries("convbfp16 -n 1 -c 3 -H 8 -W 8 -k 4 -y 1 -x 1 -F 1", DType.F32)
    assert entry.text.endswith("dtype=f32") and entry.call.operands["x"].dtype == "f32"
    (entry,) = parse_entries("gather:x=5x7,indices=3:i32", DType.F16)
    assert entry.call.operands["x"].dtype == "f16" and entry.call.operands["indices"].dtype == "i32"


def test_texts_that_are_no_calls_are_refused():
    for text in ("conv2d", "5x5", "model.onnx"):
        with pytest.raises(UsageError, match="no call"):
            parse_entries(text)
    with pytest.raises(UsageError, match="did you mean 'conv2d'"):
        parse_entries("conv2:x=1x3x8x8", must_exist=True)
    with pytest.raises(GraphError, match="3 channels"):
        parse_entries("conv2d:x=1x3x8x8,w=4x4x1x1")


@pytest.mark.parametrize("name", shipped_suites())
def test_shipped_suites_parse_and_keep_what_has_no_op_yet(name):
    entries = read_suite(name)
    assert entries and (SUITE_SIZES[name] == len(entries))
    for entry in entries:
        assert (entry.call is None) == bool(entry.why) == (entry.op not in OPS)


SUITE_SIZES = {
    "backward-data-30": 30,
    "backward-weight-30": 30,
    "backward-weight-resnet50": 30,
    "ck-grouped-wgrad": 11,
    "conv-shapes-60": 60,
    "executorch-conv2d": 24,
    "golden": 54,
    "fused-reduce": 21,
    "iree-backward-data": 13,
    "iree-backward-data-small": 7,
    "iree-split-reduction": 19,
    "attention": 20,
    "normalisations": 23,
    "mobile-int8": 12,
    "mobilenet": 57,
    "peers": 16,
    "reductions": 31,
    "resnet50": 24,
    "rocmlir-reduce": 11,
}


def test_resnet50_has_its_53_convolutions_and_4_gflop():
    convolutions = [e for e in read_suite("resnet50") if e.op == "conv2d"]
    assert sum(e.count for e in convolutions) == 53
    gflop = sum(e.count * OPS["conv2d"].flops(e.call) for e in convolutions) / 1e9
    assert gflop == pytest.approx(2 * 4.09, rel=0.01)  # 4.09 G multiply-adds with the stride in the 3x3 layers


def suite(tmp_path, text, name="s.txt"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_a_suite_file_counts_and_merges_equal_calls(tmp_path):
    text = "# layers\n\nrelu:x=5x7\n3x relu:x=5x7\n2x nonsense_op:x=3\n  conv2d:x=1x3x8x8,w=4x3x1x1,p=0\n"
    entries = read_suite(suite(tmp_path, text))
    assert [(e.text, e.count) for e in entries] == [
        ("relu:x=5x7,dtype=f32", 4),
        ("nonsense_op:x=3", 2),
        ("conv2d:x=1x3x8x8,w=4x3x1x1,dtype=f32", 1),
    ]
    assert entries[1].call is None and "no op 'nonsense_op'" in entries[1].why


def test_bad_lines_of_a_suite_are_named_and_nothing_runs(tmp_path):
    path = suite(tmp_path, "relu:x=5x7\nrelu:x=5xx7\n# fine\nconv2d:x=1x3x8x8,w=4x4x1x1\nwhat is this\n")
    with pytest.raises(UsageError) as error:
        read_suite(path)
    message = str(error.value)
    assert "not run" in message and f"{path}:1:" not in message
    assert f"{path}:2: '5xx7'" in message and f"{path}:4:" in message and f"{path}:5:" in message


def test_suites_that_do_not_exist_or_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match="did you mean 'resnet50'"):
        read_suite("resnet5")
    with pytest.raises(UsageError, match="cannot be read"):
        read_suite(str(tmp_path / "none.txt"))
    with pytest.raises(UsageError, match="no calls"):
        read_suite(suite(tmp_path, "# only this\n"))
    (tmp_path / "b.txt").write_bytes(b"relu:x=\xff\n")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_suite(str(tmp_path / "b.txt"))


HEADER = f"set,name,{','.join(CSV_COLUMNS)},direction,repeat,source"


def table(tmp_path, *rows):
    return suite(tmp_path, "\n".join(["# shapes", HEADER, *rows, ""]), "t.csv")


def test_a_table_of_convolutions_is_a_suite(tmp_path):
    path = table(
        tmp_path,
        "s,a,2,3,9,11,4,3,3,2,1,1,0,1,2,1,1,1,5,11,fwd,4,here",
        "s,b,2,6,9,9,4,1,3,1,1,0,1,0,1,1,1,2,9,9,fwd|bwd_d|bwd_w,1,here",
    )
    assert [(e.text, e.count, e.call is None) for e in read_suite(path)] == [
        ("conv2d:x=2x3x9x11,w=4x3x3x3,s=2x1,p=1x0x1x2,dtype=f32", 4, False),
        ("conv2d:x=2x6x9x9,w=4x3x1x3,p=0x1x0x1,g=2,dtype=f32", 1, False),
        ("conv2d_backward_data:dy=2x4x9x9,w=4x3x1x3,x_shape=2x6x9x9,p=0x1x0x1,g=2,dtype=f32", 1, False),
        ("conv2d_backward_weight:x=2x6x9x9,dy=2x4x9x9,w_shape=4x3x1x3,p=0x1x0x1,g=2,dtype=f32", 1, False),
    ]


def test_a_negative_padding_is_a_row_that_says_so(tmp_path):
    (entry,) = read_suite(table(tmp_path, "s,a,1,3,9,9,4,1,1,2,2,0,0,-1,-1,1,1,1,4,4,fwd,1,here"))
    assert entry.call is None and "negative" in entry.why and "0x0x-1x-1" in entry.why


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            "s,a,1,3,9,9,4,1,1,1,1,0,0,0,0,1,1,1,9,8,fwd,1,here",
            "the output of these numbers is 9x9, the table says 9x8",
        ),
        ("s,a,1,3,9,9,4,1,1,1,1,0,0,0,0,1,1,1,9,9,forward,1,here", "did you mean 'fwd'"),
        ("s,a,1,3,9,,4,1,1,1,1,0,0,0,0,1,1,1,9,9,fwd,1,here", "w is ''"),
        ("s,a,1,3,9,9,4,1,1,0,1,0,0,0,0,1,1,1,9,9,fwd,1,here", "at least 1"),
        ("s,a,1,3,9,9,4,1,1,1,1,0,0,0,0,1,1,0,9,9,fwd,1,here", "0 groups"),
        ("s,a,1,3,9,9,4,1,1", "9 cells, not 23"),
        ("s,a,1,3,9,9,4,1,1,1,1,0,0,0,0,1,1,1,9,9,fwd,0,here", "repeat is 0"),
    ],
)
def test_a_bad_row_of_a_table_is_named(tmp_path, row, words):
    path = table(tmp_path, "s,a,1,3,9,9,4,1,1,1,1,0,0,0,0,1,1,1,9,9,fwd,1,here", row)
    with pytest.raises(UsageError) as error:
        read_suite(path)
    assert f"{path}:4: " in str(error.value) and words in str(error.value)


def test_a_table_without_a_column_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"t\.csv:1: the column k, kh is missing; the table needs n, c"):
        read_suite(suite(tmp_path, HEADER.replace("k,kh,", "") + "\n1\n", "t.csv"))


def test_a_table_needs_only_what_has_no_default(tmp_path):
    (entry,) = read_suite(suite(tmp_path, "n,c,h,w,k,kh,kw\n2,3,9,11,4,3,3\n", "t.csv"))
    assert (entry.text, entry.count) == ("conv2d:x=2x3x9x11,w=4x3x3x3,dtype=f32", 1)
    (entry,) = read_suite(suite(tmp_path, "n,c,h,w,k,kh,kw,pad_t,oh\n2,3,9,11,4,3,3,1,8\n", "t.csv"))
    assert entry.text == "conv2d:x=2x3x9x11,w=4x3x3x3,p=1x0x0x0,dtype=f32"


def test_a_model_is_its_distinct_calls_with_their_counts():
    shape = TensorSpec((1, "c", 5))
    nodes = [Node(f"n{i}", "tan", (f"v{i}",), (f"v{i + 1}",)) for i in range(3)]
    nodes.append(Node("flat", "flatten", ("v3",), ("y",)))
    graph = Graph({"v0": shape}, ("y",), tuple(nodes))
    entries = model_entries(graph, load_device("lavapipe"), {"v0": (1, 3, 5)})
    assert [(e.text, e.count, e.nodes) for e in entries] == [("tan:x=1x3x5,dtype=f32", 3, ("n0", "n1", "n2"))]
    halves = model_entries(graph, load_device("lavapipe"), {"v0": (1, 3, 5)}, dtype=DType.F16)
    assert [(e.text, e.count, e.nodes) for e in halves] == [("tan:x=1x3x5,dtype=f16", 3, ("n0", "n1", "n2"))]
    assert halves[0].call == parse_call("tan:x=1x3x5,dtype=f16", OPS)


def test_calls_of_models_that_differ_in_numbers_alone_are_one_row():
    def entry(text, *nodes):
        return Entry(text, parse_call(text, OPS), len(nodes) or 1, nodes=nodes)

    conv = "conv2d:x=1x8x9x9,w=8x8x1x1,act=hard_swish,out_scale={},out_shift={},dtype=f32"
    first, other = conv.format(0.5, 0.25), conv.format(2.0, -1.0)
    larger = first.replace("9x9", "9x11")
    plain = "conv2d:x=1x8x9x9,w=8x8x1x1,act=hard_swish,dtype=f32"
    merged = merge_alike([entry(first, "a", "b"), entry(larger, "c"), entry(plain, "d"), entry(other, "e")])
    assert [(one.text, one.count, one.nodes) for one in merged] == [
        (first, 3, ("a", "b", "e")), (larger, 1, ("c",)), (plain, 1, ("d",)),
    ]  # fmt: skip
    assert [one.note for one in merged] == ["stands for 2 calls that differ in numbers alone", "", ""]
    asked = [entry(first), entry(other)]
    assert merge_alike(asked) == asked


LAVAPIPE = load_device("lavapipe")
ENTRIES = [
    *parse_entries("conv2d:x=1x3x8x8,w=4x3x3x3"),
    *parse_entries("matmul:a=3x4,b=4x5"),
    Entry("later:x=3", None, why="there is no op"),
]


@pytest.mark.parametrize(
    ("texts", "conv", "product"),
    [
        ([], [None], [None]),
        (["all"], [route.name for route in OPS["conv2d"].routes], [route.name for route in OPS["matmul"].routes]),
        (["direct"], ["direct"], ["direct"]),
        (["direct,direct_tile"], ["direct", "direct_tile"], ["direct", "direct_tile"]),
        (["conv2d=direct", "matmul=shared"], ["direct"], ["shared"]),
        (["conv2d=direct"], ["direct"], [None]),
    ],
)
def test_routes_asked_for_become_a_row_each(texts, conv, product):
    tasks = make_tasks(ENTRIES, Routes.parse(texts, ENTRIES), LAVAPIPE)
    of = {op: [t.route for t in tasks if t.entry.op == op] for op in ("conv2d", "matmul", "later")}
    assert of["later"] == [None]
    assert of["conv2d"][: len(conv)] == conv and of["matmul"] == product


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dirct", "did you mean 'direct'"),
        ("conv2d=shared", "no route 'shared'"),
        ("conv=direct", "did you mean 'conv2d'"),
    ],
)
def test_a_route_that_no_call_has_is_refused(text, words):
    with pytest.raises(UsageError, match=words):
        Routes.parse([text], ENTRIES)


def test_merging_keeps_the_order_and_adds_counts():
    a, b = parse_entries("relu:x=3")[0], parse_entries("relu:x=4")[0]
    assert [(e.text, e.count) for e in merge([b, a, b, b])] == [(b.text, 3), (a.text, 1)]


def test_swept_parameters_are_all_their_legal_values_on_the_routes_that_have_them():
    (entry,) = parse_entries("conv2d:x=1x8x16x16,w=16x8x3x3,p=1")
    routes = {r.name: r for r in OPS["conv2d"].routes}
    tasks = make_tasks([entry], Routes(names=("direct_tile", "pointwise")), LAVAPIPE, sweep=["local", "channels"])
    legal = routes["direct_tile"].params(entry.call, LAVAPIPE)
    assert len(legal["local"]) * len(legal["channels"]) > 1
    pairs = {(t.params["local"], t.params["channels"]) for t in tasks if t.route == "direct_tile"}
    assert pairs == {(a, b) for a in legal["local"] for b in legal["channels"]}
    assert [t.params for t in tasks if t.route == "pointwise"] == [{}]  # a row that says which need refused it


def test_sizes_given_for_local_are_measured_where_a_route_has_them():
    (entry,) = parse_entries("conv2d:x=1x8x16x16,w=16x8x3x3,p=1")
    tasks = make_tasks([entry], Routes(), LAVAPIPE, local=[8, 12345])
    assert [t.params for t in tasks] == [{"local": 8}, {"local": 12345}]  # the second will be refused by name


def test_parameters_are_set_by_op_where_a_route_has_them_and_by_route():
    entries = parse_entries("conv2d:x=1x8x16x16,w=16x8x3x3,p=1")
    params = {"conv2d": {"local": 32}, "conv2d:direct_tile": {"channels": 8, "local": 64}}
    tasks = make_tasks(entries, Routes(names=("direct_tile", "direct", "pointwise")), LAVAPIPE, params=params)
    assert [dict(t.params) for t in tasks] == [{"local": 64, "channels": 8}, {"local": 32}, {}]
    swept = make_tasks(entries, Routes(names=("direct_tile",)), LAVAPIPE, params=params, sweep=["columns"])
    assert len(swept) > 1 and all(t.params["channels"] == 8 for t in swept)


@pytest.mark.parametrize(
    ("params", "more", "words"),
    [
        ({"conv": {"local": 32}}, {}, r"no call here is 'conv' \(did you mean 'conv2d'\?\)"),
        ({"node:a": {"local": 32}}, {}, r"no call here is 'node'"),
        ({"conv2d:direkt": {"local": 32}}, {}, r"conv2d has no route 'direkt' \(did you mean 'direct'\?\)"),
        ({"conv2d": {"lokal": 32}}, {}, r"conv2d=lokal: no route here has that \(did you mean 'local'\?\); they have"),
        (
            {"conv2d:direct_tile": {"channels": 8}},
            {},
            "no route here has that: direct_tile is not measured; add --route direct_tile",
        ),
        ({"conv2d:pointwise": {"local": 32}}, {"routes": ("pointwise",)}, "route 'pointwise' cannot take conv2d on"),
        ({"conv2d": {"local": 32}}, {"sweep": ["local"]}, r"conv2d=local:32 and swept: give one"),
        ({"conv2d": {"local": 32}}, {"local": [64]}, r"conv2d=local:32 and swept: give one"),
    ],
)
def test_a_parameter_that_cannot_be_set_is_refused(params, more, words):
    with pytest.raises(UsageError, match=words):
        settings = {"routes": ("direct",), **more}
        routes = Routes(names=settings.pop("routes"))
        make_tasks(parse_entries("conv2d:x=1x8x16x16,w=16x8x3x3"), routes, LAVAPIPE, params=params, **settings)


def test_a_parameter_that_no_route_has_is_refused():
    with pytest.raises(UsageError, match=r"parameter 'lokal' \(did you mean 'local'\?\)"):
        make_tasks(parse_entries("conv2d:x=1x8x16x16,w=16x8x3x3"), Routes(), LAVAPIPE, sweep=["lokal"])


def test_a_parameter_of_a_route_that_cannot_run_here_is_refused_with_the_reason():
    entries = parse_entries("matmul:a=64x64,b=64x64,dtype=f16")
    with pytest.raises(UsageError, match=r"cooperative cannot run here: .* needs cooperative matrices"):
        make_tasks(entries, Routes(names=("cooperative",)), LAVAPIPE, sweep=["tile"])
    with pytest.raises(UsageError, match=r"'tiles' .*; they have .*tile.*; cooperative cannot run here$"):
        make_tasks(entries, Routes(names=("cooperative", "shared")), LAVAPIPE, sweep=["tiles"])


@pytest.mark.parametrize(("text", "sizes"), [("", []), ("64,128x1x1,64", [64, 128]), ("8x1", [8])])
def test_local_sizes_are_lines(text, sizes):
    assert parse_local(text) == sizes


@pytest.mark.parametrize("text", ["8x8", "16x4x1", "0", "x", "8x1x1x1", "scalar"])
def test_local_sizes_that_are_no_lines_are_refused(text):
    with pytest.raises(UsageError, match=r"lines|shape"):
        parse_local(text)


def test_a_policy_chooses_routes_as_its_system_does():
    """conv2d as ExecuTorch: im2col for many output channels; what its rules say nothing of is the planner's."""
    texts = "conv2d:x=1x16x16x16,w=128x16x3x3,p=1", "conv2d:x=1x16x16x16,w=64x16x3x3,p=1", "matmul:a=8x9,b=9x7"
    entries = [entry for text in texts for entry in parse_entries(text)]
    many, few, other = make_tasks(entries, Routes.parse([], entries), LAVAPIPE, policy="executorch")
    assert many.route == "im2col_gemm" and many.note.startswith("policy executorch: ")
    assert few.route == "direct_tile" and (other.route, other.note) == (None, "")
    (weights,) = parse_entries("conv2d_backward_weight:x=16x16x225x225,dy=16x64x225x225,w_shape=64x16x3x3,p=1")
    (task,) = make_tasks([weights], Routes.parse([], [weights]), LAVAPIPE, policy="iree")
    assert (task.route, dict(task.params)["policy"]) == ("split_multi", "iree")
    forced = make_tasks(entries, Routes.parse(["conv2d=direct_tile"], entries), LAVAPIPE, policy="executorch")
    assert [(t.route, t.note) for t in forced] == [("direct_tile", "")] * 2 + [(None, "")]
    with pytest.raises(UsageError, match=r"did you mean .iree."):
        make_tasks(entries, Routes.parse([], entries), LAVAPIPE, policy="irre")
