"""ExecuTorch's programs that are refused: what is said, at each place where a file may be cut, and in bounded time."""

import numpy as np
import pytest
from required import required

required("flatbuffers")
from pte_kit import T, const, delegated, program, vulkan  # noqa: E402

from vkconv.core import ModelError, UnsupportedError  # noqa: E402
from vkconv.graph import load_model  # noqa: E402


def small(**more):
    return program({"x": T((3,)), "y": T((3,))}, [("aten::relu.out", ["x"], "y")], "x", "y", **more)


def conv_delegate(**more):
    tensors = {
        "x": T((1, 3, 5, 5)),
        "w": const(np.ones((4, 3, 3, 3)), named=more.pop("named", "")),
        "y": T((1, 4, 3, 3)),
    }
    return delegated(
        tensors,
        [("aten.convolution.default", ["x", "w", None, (2, 2), (1, 1), (1, 1), False, (0, 0), 1], "y")],
        "x",
        "y",
        **more,
    )


TENSORS = {"x": T((3,)), "y": T((3,)), "z": T((3,))}
REFUSED = {
    "empty": (b"", ModelError, "the file is empty"),
    "no program": (b"PK\3\4 nothing of it", ModelError, "a"),
    "another schema": (small(identifier=b"ET13"), ModelError, "of ExecuTorch's schema ET13; vkconv reads ET12"),
    "bundled": (small(identifier=b"BP08"), ModelError, r"a bundled program, .* load the \.pte file"),
    "version": (small(version=3), ModelError, "is of version 3 of ExecuTorch's programs; vkconv reads 0"),
    "methods": (small(method="a", methods=("b",)), ModelError, r"has 2 methods \('a', 'b'\), none of them forward"),
    "control flow": (small(jump=True), ModelError, "straight-line programs"),
    "backend": (conv_delegate(backend="XnnpackBackend"), UnsupportedError,
                r"XnnpackBackend \(delegate_1\): vkconv reads the graphs of VulkanBackend.*\n.*torch.export.save"),
    "operator": (program(TENSORS, [("aten::relux.out", ["x"], "y")], "x", "y"), UnsupportedError,
                 r"aten::relux.out .*no such operator \(did you mean 'relu.default'"),
    "quantized": (delegated(TENSORS, [("et_vk.q8ta_linear.default", ["x"], "y")], "x", "y"), UnsupportedError,
                  "which only ExecuTorch's kernels unpack"),
    "state": (program(TENSORS, [("aten::copy_.", ["z", "x"], "y")], "x", "y"), UnsupportedError, "kept between runs"),
    "in place": (program(TENSORS, [("aten::relu.out", ["y"], "x")], "x", "x"), UnsupportedError, "between runs"),
    "initial state": (
        program(TENSORS | {"z": const(np.arange(3), memory=(1, 0))},
                [("aten::add.out", ["x", "z", 1], "y"), ("aten::copy_", ["z", "y", False], "z")], "x", "y"),
        UnsupportedError, r"state_0.*begins with other numbers than one"),
    "a state of f64": (
        program(TENSORS | {"z": T((3,), "f64", memory=(1, 0))}, [("aten::copy_", ["z", "x", False], "z")], "x", "x"),
        UnsupportedError, r"state_0.*it has f64"),
    "external": (program(TENSORS | {"z": T((3,), external=True)}, [("aten::add.out", ["x", "z", 1], "y")], "x", "y"),
                 UnsupportedError, r"file of their own \(\.ptd\)"),
    "f64": (delegated({"x": T((3,), "f64"), "y": T((3,), "f64")}, [("aten.relu.default", ["x"], "y")], "x", "y"),
            UnsupportedError, r"it is f64, a type that vkconv does not have"),
    "delegate version": (program(TENSORS, [(0, "x y")], "x", "y",
                                 [vulkan(TENSORS, [("aten.relu.default", ["x"], "y")], "x", "y", version="7")]),
                         ModelError, "of version '7'; vkconv reads 0"),
    "delegate schema": (program(TENSORS, [(0, "x y")], "x", "y",
                                [vulkan(TENSORS, [("aten.relu.default", ["x"], "y")], "x", "y", identifier=b"VK09")]),
                        ModelError, "of schema 'VK09'; vkconv reads VK00"),
    "delegate blob": (program(TENSORS, [(0, "x y")], "x", "y",
                              [vulkan(TENSORS, [("aten.relu.default", ["x"], "y")], "x", "y", magic=b"VH09")]),
                      ModelError, "does not begin as vkconv knows it"),
    "arguments": (program(TENSORS, [(0, "x y z")], "x", "y",
                          [vulkan(TENSORS, [("aten.relu.default", ["x"], "y")], "x", "y")]),
                  ModelError, "1 inputs and 1 outputs is called with 3 values"),
    "buffer of a delegate": (program(TENSORS, [(0, "x y")], "x", "y",
                                     [vulkan(TENSORS, [("aten.relu.default", ["x"], "y")], "x", "y x")]),
                             UnsupportedError, r"VulkanBackend \(delegate_1\): it changes a value inside it"),
    "buffer in place": (delegated(TENSORS | {"z": const(np.ones(3))},
                                  [("et_vk.prepack.default", ["z"], "y"), ("aten.add.Tensor", ["y", "x", 1], "y")],
                                  "x", "y"), UnsupportedError, "it changes a value that was there before"),
    "a tensor for numbers": (program(TENSORS, [("aten::permute_copy.out", ["x", "x"], "z")], "x", "z"),
                             UnsupportedError, "a size that it takes is open"),
    "a number too large": (program({name: T((3,), "i32") for name in "xy"},
                                   [("aten::add.Scalar_out", ["x", 1 << 40, 1], "y")], "x", "y"),
                           UnsupportedError, "it takes a number that i32 does not hold"),
    "numbers for a tensor": (program(TENSORS, [("aten::cat.out", [3, 0], "z")], "x", "z"),
                             ModelError, "arguments that it cannot have"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_what_to_do(name, tmp_path):
    data, error, said = REFUSED[name]
    (tmp_path / "a.pte").write_bytes(data)
    with pytest.raises(error, match=said) as told:
        load_model(tmp_path / "a.pte")
    assert str(told.value).startswith(f"{tmp_path / 'a.pte'}: ")


def test_every_cut_is_told():
    data = conv_delegate(named="k", inline=False)
    load_model(data)
    for end in (*range(0, 700, 3), *range(700, len(data) - 16, 41)):
        with pytest.raises(ModelError):
            load_model(data[:end] if end > 8 else data[:8])


def test_one_list_for_many_calls_is_not_read_for_each():
    """What a few bytes say many times over: a list of a hundred thousand members for each of a thousand calls."""
    members = ["x"] * 100_000
    tensors = {"x": T((1,)), "y": T((100_000,)), "all": members}
    calls = [("aten::cat.out", ["all", 0], f"y{i}") for i in range(1000)]
    tensors |= {f"y{i}": T((100_000,)) for i in range(1000)}
    with pytest.raises(ModelError, match="lists of more than"):
        load_model(program(tensors, calls, "x", "y0"))
