"""Lines of other tools: MIOpenDriver, ckProfiler, benchdnn, llama.cpp and PyTorch's profiler, each as the call it
stands for."""

import pytest
from cli_kit import vkconv
from hypothesis import given
from hypothesis import strategies as st

from vkconv.bench.lines import is_line, line_calls, one_call
from vkconv.bench.suites import parse_entries
from vkconv.core import UsageError, VkconvError
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call

FORWARD_ONLY = "the forward pass alone: vkconv has no op for the other"


@pytest.mark.parametrize(
    ("line", "call", "note"),
    [
        (
            "pool -n 16 -c 64 -H 56 -W 48 -y 3 -x 2 -v 2 -u 1 -p 1 -q 0 -F 1",
            "pool2d:x=16x64x56x48,kind=max,k=3x2,s=2x1,p=1x0,dtype=f32",
            "",
        ),
        ("poolfp16 -n 2 --mode avg_in", "pool2d:x=2x3x32x32,kind=avg,cip=1,k=3x3,s=1x1,p=0x0,dtype=f16", FORWARD_ONLY),
        ("gemm -m 128 -n 64 -k 32", "matmul:a=64x32,b=32x128,dtype=f32", ""),
        ("gemm -m 128 -n 64 -k 32 -C 0 -u 1", "matmul:a=32x128,b=32x64,ta=1,dtype=f32", ""),
        ("gemmbfp16 -m 8 -n 4 -k 2 -C 0 -v 1 -b 3", "matmul:a=3x8x2,b=3x4x2,tb=1,dtype=bf16", ""),
        ("gemm -m 8 -n 4 -k 2 -u 1 -A 0.5", "matmul:a=4x2,b=8x2,tb=1,alpha=0.5,dtype=f32", ""),
        ("./bin/MIOpenDriver softmax -n 8 -c 10 -H 1 -W 2 -m 0 -a 2 -F 1", "softmax:x=8x20,log=1,dtype=f32", ""),
        ("softmax -n 8 -c 10 -H 1 -W 2", "softmax:x=8x10x1x2,axis=1,dtype=f32", FORWARD_ONLY),
        (
            "bnorm -n 8 -c 16 -H 7 -W 5 -m 1 -F 2",
            "batch_norm:x=8x16x7x5,scale=16,bias=16,mean=16,var=16,dtype=f32",
            "",
        ),
        (
            "bnorm -n 8 -c 2 -H 3 -W 5 -b 1",
            "batch_norm_training:x=8x30,scale=30,bias=30,mean=30,var=30,dtype=f32",
            FORWARD_ONLY,
        ),
        ("mb1ic16ih14oc32oh14kh3ph1", "conv2d:x=1x16x14x14,w=32x16x3x3,p=1x1x1x1,b=32,dtype=f32", ""),
        (
            "--conv --dir=BWD_W --dt=f16 mb1ic16ih14oc32oh14kh3ph1",
            "conv2d_backward_weight:x=1x16x14x14,dy=1x32x14x14,w_shape=32x16x3x3,p=1x1x1x1,dtype=f16",
            "",
        ),
        (
            'benchdnn --conv --dir=FWD_D ic3ih227iw227_oc96oh55ow55_kh11kw11_sh4sw4ph0pw0_n"alexnet:conv1"',
            "conv2d:x=2x3x227x227,w=96x3x11x11,s=4x4,dtype=f32",
            "",
        ),
        (
            "--conv --dir=FWD_D --mb=4 g2mb1ic4iw9oc6kw3dw1",
            "conv2d:x=4x4x1x9,w=6x2x1x3,d=1x2,g=2,dtype=f32",
            "",
        ),
        (
            "--deconv --dir=FWD_D mb1ic16ih7oc8oh15kh4sh2ph1",
            "conv_transpose2d:x=1x16x7x7,w=16x8x4x4,s=2x2,p=1x1x0x0,d=1x1,dtype=f32",
            "",
        ),
        (
            '--pool --alg=avg_p --tag=nhwc mb96ic768_ih17oh17_kh3sh1ph1n"googlenet"',
            "pool2d:x=96x17x17x768,kind=avg,cip=1,k=3x3,s=1x1,p=1x1x1x1,d=1x1,layout=NHWC,dtype=f32",
            "",
        ),
        (
            "--conv --dir=FWD_D --stag=axb --wtag=abcd --dtag=axb mb1ic16ih14oc32oh14kh3ph1",
            "conv2d:x=1x14x14x16,w=32x16x3x3,p=1,layout=NHWC",
            "",
        ),
        (
            "--conv --dir=BWD_W --stag=axb --wtag=ohwi --dtag=acdb mb1ic16ih14oc32oh14kh3ph1",
            "conv2d_backward_weight:x=1x14x14x16,dy=1x14x14x32,w_shape=32x3x3x16,p=1,layout=NHWC,w_layout=KYXC",
            "",
        ),
        (
            "--conv --dir=FWD_D --stag=axb --wtag=axb --dtag=any g2mb1ic16ih14oc32oh14kh3ph1",
            "conv2d:x=1x16x14x14,w=32x8x3x3,p=1,g=2",
            "left out: --stag=axb, --wtag=axb, --dtag=any",
        ),
        (
            "ckProfiler grouped_conv_bwd_weight 2 2 1 1 0 1 2 2 64 8 4 3 1 7 9 2 1 1 2 1 0 2 0 4",
            "conv2d_backward_weight:x=64x7x9x2x4,dy=64x4x9x2x8,w_shape=2x8x3x1x4,s=2x1,d=1x2,p=1x0x2x0,dtype=bf16,"
            "dw_dtype=f32,layout=NHWGC,w_layout=GKYXC",
            "split-K 4 is left out: it is a parameter of routes",
        ),
        (
            "grouped_conv_bwd_weight 1 1 1 1 0 1 1 2 64 8 4 3 9 1 1 1 1 1",
            "conv2d_backward_weight:x=2x64x1x9x4,dy=2x64x1x9x8,w_shape=2x8x1x3x4,p=0x1,dtype=f16,layout=GNHWC,"
            "w_layout=GKYXC",
            "",
        ),
        (
            "ckProfiler grouped_conv_bwd_data 0 2 1 1 0 1 3 2 1 6 4 1 2 3 5 6 7 1 1 1 1 1 1 0 0 1 0 1 1 1",
            "conv3d_backward_data:dy=1x2x6x5x6x7,w=2x6x1x2x3x4,x_shape=1x2x4x5x6x7,p=0x0x1x0x1x1,layout=NGCDHW,"
            "w_layout=GKZYXC",
            "",
        ),
        ("--matmul 2x10x30:1x30x20", "matmul:a=2x10x30,b=1x30x20,dtype=f32", ""),
        ("--reduction --alg=mean 4x2x3:4x1x1", "reduce:x=4x2x3,op=mean,axes=1x2,dtype=f32", ""),
        ("--softmax --alg=LOGSOFTMAX --axis=0 64x10", "softmax:x=64x10,axis=0,log=1,dtype=f32", ""),
        (
            "MUL_MAT(type_a=f16,type_b=f32,m=16,n=1,k=256,bs=[1,1],nr=[1,1],per=[0,1,2,3],v=0):  852 runs - 6 us/run",
            "matmul:a=1x256,b=16x256,tb=1,dtype=f16",
            "b is f32; measured with both in f16",
        ),
        (
            "MUL_MAT(type_a=f32,type_b=f32,m=16,n=3,k=256,bs=[10,5],nr=[2,1])",
            "matmul:a=5x10x6x256,b=5x10x16x256,tb=1,dtype=f32",
            "matrices that share one of a are rows of one",
        ),
        ("ADD(type=f32,ne=[4096,1,1,1],nr=[1,512,1,1])", "add:a=1x1x512x4096,b=1x1x1x4096,dtype=f32", ""),
        ("SOFT_MAX(type=f32,ne=[10,5,4,3],mask=1)", "softmax:x=3x4x5x10,dtype=f32", "measured without the mask"),
        ("aten::mm [[32, 64], [64, 10]]", "matmul:a=32x64,b=64x10", ""),
        ("aten::addmm [[10], [32, 64], [64, 10], [], []]", "matmul:a=32x64,b=64x10,bias=10", ""),
        ("aten::linear [[2, 32, 64], [10, 64], [10]] dtype=f16", "matmul:a=2x32x64,b=10x64,tb=1,bias=10,dtype=f16", ""),
        (
            "aten::conv2d [[1, 64, 56, 56], [64, 64, 3, 3], [64], [], []] stride=2 padding=1",
            "conv2d:x=1x64x56x56,w=64x64x3x3,b=64,s=2,p=1",
            "",
        ),
        ("aten::relu_ [[3, 4]]", "relu:x=3x4", ""),
        ("aten::_log_softmax [[3, 4], [], []]", "softmax:x=3x4,log=1", "along the last axis: the shapes do not tell"),
    ],
)
def test_a_line_is_a_call(line, call, note):
    assert is_line(line)
    ((text, said),) = line_calls(line)
    assert parse_call(text, OPS) == parse_call(call, OPS)
    assert said == note
    (entry,) = parse_entries(line)
    assert entry.note == note and parse_call(entry.text, OPS) == parse_call(call, OPS)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("pool -n 1 -m sum", r"-m \(mode\) is 'sum'"),
        ("pool -n x", "-n is 'x', no whole number"),
        ("pool -n", "-n has no value"),
        ("gemm -q 3", "'-q' is no flag of MIOpenDriver gemm"),
        ("gemm -A x", "-A is 'x', no number"),
        ("softmax -a 9", "0 to 2"),
        ("softmax -a 12", "is 12, 0 to 2"),
        ("bnorm -m 01", "is 01, 0 or 1"),
        ("bnorm -F 0", "backward pass alone"),
        ("ckProfiler grouped_conv_fwd 0 1", "vkconv takes grouped_conv_bwd_weight, grouped_conv_bwd_data"),
        ("ckProfiler", "vkconv takes grouped_conv_bwd_weight"),
        ("grouped_conv_bwd_data 0 x", "whole numbers"),
        ("grouped_conv_bwd_data 0 1 1 1 0 1 4", "argument 8 is the number of dimensions, 1 to 3"),
        ("grouped_conv_bwd_data 0 1 1 1 0 1 1 2 64", "has 9 arguments .* there are 18"),
        ("grouped_conv_bwd_weight 3 2 1 1 0 1 1 2 64 8 4 3 9 1 1 1 1 1", "data type 3, of which vkconv takes 0, 1"),
        ("grouped_conv_bwd_weight 0 9 1 1 0 1 1 2 64 8 4 3 9 1 1 1 1 1", "layout 9, 0 to 4"),
        ("grouped_conv_bwd_weight 0 2 1 1 0 1 1 2 64 8 4 3 9 0 1 1 1 1", "at least 1"),
        ("grouped_conv_bwd_weight 0 2 1 1 0 1 1 2 64 8 4 3 1 1 1 0 0 1", "1x3 kernel does not fit 1x1"),
        ("--conv", "has no problem"),
        ("--conv id3ic3ih3oc3kh1", "has id"),
        ("--conv mb1ic3ih3kh1", "has no oc"),
        ("--conv --dir=UP mb1ic3ih3oc3kh1", "--dir=UP is none"),
        ("--conv --dt=u8:s8:f32 mb1ic3ih3oc3kh1", "the same of all tensors"),
        ("--conv --nothing=1 mb1ic3ih3oc3kh1", "--nothing is no knob"),
        ("--conv --mb=x mb1ic3ih3oc3kh1", "--mb=x is no whole number"),
        ("--pool ic3ih3kh2sh0", "sh is 0"),
        ("--deconv g0ic3ih3oc3kh1", "g is 0"),
        ("--conv mb1ic3ih9oc3oh2kh1", "oh is 2, and the sizes make 9"),
        ("--reduction 2x3:2x3", "reduces nothing"),
        ("--reduction 2x3:3x1", "is no reduction"),
        ("--softmax --dir=BWD_D 2x3", "forward directions"),
        ("FLASH_ATTN_EXT(hsk=64)", "vkconv takes MUL_MAT"),
        ("MUL_MAT(type_a=q4_0,m=1,n=1,k=1)", "type_a is q4_0"),
        ("MUL_MAT(m=1,n=1)", "k is missing"),
        ("ADD(type=f32,ne=[4,1,1,1],nr=[2,1,1,1])", "is repeated"),
        ("aten::conv2d [[1,2,3,4],[1,2,1,1]]", "do not tell stride and padding"),
        ("aten::mm [[1, 2]]", "does not have 1 tensors"),
        ("aten::mm [[1, 'a']]", "is no list of shapes"),
        ("aten::mm [[1]] x=3", "x is none of"),
        ("aten::nothing [[1]]", "no op for the shapes of aten::nothing"),
        ("aten::mm", "is written as aten::mm"),
    ],
)
def test_what_is_wrong_with_a_line_is_named(line, said):
    with pytest.raises(UsageError, match=said):
        line_calls(line)


@given(
    st.sampled_from(
        [
            "pool ",
            "ckProfiler ",
            "grouped_conv_bwd_weight 0 2 1 1 0 1 2 ",
            "gemm -",
            "bnorm -m ",
            "--conv ",
            "--pool --alg=",
            "benchdnn ",
            "MUL_MAT(m=",
            "aten::mm [",
        ]
    ),
    st.text(st.characters(codec="ascii"), max_size=40),
)
def test_any_line_is_taken_or_refused(start, rest):
    if is_line(start + rest):
        try:
            entries = parse_entries(start + rest)
        except VkconvError:
            return
        assert all(parse_call(entry.text, OPS) for entry in entries if entry.call)


@pytest.mark.parametrize("text", ["conv2d:x=1x3x4x4,w=3x3x1x1", "model.onnx", "resnet50", "gemm", "mb1", "", "softmax"])
def test_other_texts_are_no_lines(text):
    assert not is_line(text)


def test_a_command_for_one_call_takes_a_line():
    code, out, _ = vkconv("explain", "gemm -m 128 -n 64 -k 32", "--device", "mali-g57")
    assert code == 0 and "matmul:a=64x32,b=32x128,dtype=f32 on Mali-G57" in out
    code, _, err = vkconv("explain", "conv -n 1 -c 3 -H 9 -W 9 -k 4 -y 3 -x 3", "--device", "mali-g57")
    assert code == 2 and "stands for 3 calls" in err and "conv2d_backward_weight" in err
    assert one_call("aten::relu [[3]]") == "relu:x=3"
