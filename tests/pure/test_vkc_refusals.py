"""The .vkc format: what is no legal file is refused, by what is wrong and where."""

import json
import os
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vkc_kit import build, minimal, refused, small_graph, tensor

from vkconv.core import ModelError
from vkconv.graph import Graph, vkc
from vkconv.graph.vkc import load_vkc, save_vkc


def test_a_file_that_is_cut_short_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.vkc"
    save_vkc(Graph({}, ("w",), (), {"w": np.zeros(1000, np.float32)}), path)
    size, convert = path.stat().st_size, vkc.msgspec.convert

    def cut(value: Any, kind: Any) -> Any:  # between the header and the tensors
        os.truncate(path, size - 10)
        return convert(value, kind)

    monkeypatch.setattr(vkc.msgspec, "convert", cut)
    with pytest.raises(ModelError, match="tensor 'w' cannot be read: the file has become 10 bytes shorter while"):
        load_vkc(path)


def test_a_file_of_more_than_the_memory_is_refused(tmp_path: Path) -> None:
    size = 1 << 42  # none of it on the disk
    header = {"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    data = build(header, b"")
    (tmp_path / "a.vkc").write_bytes(data)
    os.truncate(tmp_path / "a.vkc", len(data) + size)
    with pytest.raises(
        ModelError, match=rf"tensor 'w' cannot be read: it takes 4.00 TiB \({size} bytes\), and .* are free"
    ):
        load_vkc(tmp_path / "a.vkc")


@pytest.mark.long
def test_truncation_at_every_length_is_a_model_error(tmp_path: Path) -> None:
    save_vkc(small_graph(), tmp_path / "a.vkc")
    whole = (tmp_path / "a.vkc").read_bytes()
    for length in range(len(whole)):
        refused(tmp_path, whole[:length])
    refused(tmp_path, whole + b"\0")


@pytest.mark.long
def test_random_damage_is_a_model_error_or_another_legal_file(tmp_path: Path) -> None:
    save_vkc(small_graph(), tmp_path / "a.vkc")
    whole = (tmp_path / "a.vkc").read_bytes()
    random = np.random.default_rng(5)
    outcomes = {"refused": 0, "read": 0}
    for _ in range(600):
        damaged = bytearray(whole)
        for at in random.integers(0, len(whole), random.integers(1, 4)):
            damaged[at] = random.integers(256)
        (tmp_path / "b.vkc").write_bytes(damaged)
        try:
            load_vkc(tmp_path / "b.vkc")
            outcomes["read"] += 1
        except ModelError:
            outcomes["refused"] += 1
    assert outcomes["refused"] > 300 and outcomes["read"] > 10, outcomes


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ({"w": tensor(dtype="F64", data_offsets=[0, 8], shape=[1])}, "'F64'"),
        ({"w": tensor(shape=[3])}, "3 of F32 has 12"),
        ({"w": tensor(shape=[-2])}, r"\$.shape\[0\]"),
        ({"w": tensor(shape=[2**62, 2**62])}, "cannot have the shape"),
        ({"w": tensor(shape=[2**62, 0], data_offsets=[0, 0])}, "2\\^64 bytes or more"),
        ({"w": tensor(shape=[1] * 8 + [2])}, r"length <= 8 - at `\$.shape`"),
        ({"w": tensor(data_offsets=[8, 0])}, "offsets span -8 bytes"),
        ({"w": tensor(data_offsets=[4, 12])}, "truncated: tensor 'w' ends at byte 12"),
        ({"w": tensor(shape=[1], data_offsets=[4, 8])}, "begins at byte 4 of the data where 0 is due"),
        ({"w": tensor(shape=[1], data_offsets=[0, 4])}, "has 8 B of data, its tensors use 4 B"),
        ({"w": tensor(), "v": tensor()}, "begins at byte 0 of the data where 8 is due"),
        ({"w": {"dtype": "F32", "shape": [2]}}, "data_offsets"),
        ({"w": tensor(extra=1)}, "extra"),
        ({"w": 3}, "tensor 'w': Expected `object`"),
        ({"": tensor()}, "empty name"),
        ({"w": tensor(dtype="BOOL", shape=[8])}, "other than 0 and 1"),
    ],
)
def test_bad_tensors(tmp_path: Path, header: dict[str, Any], text: str) -> None:
    assert_matches(refused(tmp_path, build(header, bytes(range(8)))), text)


def assert_matches(message: str, pattern: str) -> None:
    assert re.search(pattern, message), message


def node(**changes: Any) -> dict[str, Any]:
    return {"name": "a", "op": "relu", "inputs": ["x"], "outputs": ["y"], "attrs": {}} | changes


@pytest.mark.parametrize(
    ("graph", "text"),
    [
        (minimal(schema="vkconv.graph/2"), "has the schema 'vkconv.graph/2', this vkconv reads 'vkconv.graph/1'"),
        ({}, "has the schema None"),
        ("not json", "vkconv.graph is not legal JSON"),
        ("[1]", "not a JSON object"),
        ('{"schema": NaN}', "NaN is not JSON"),
        ('{"schema": "a", "schema": "b"}', "'schema' occurs twice"),
        ("[" * 100_000, "not legal JSON"),
        (minimal(extra=1), "extra"),
        (minimal(nodes=[node(op="")]), r"\$.nodes\[0\].op"),
        (minimal(nodes=[node(), node(outputs=["z"])]), "two nodes are named 'a'"),
        (minimal(nodes=[node(inputs=["q"])]), "reads 'q'"),
        (minimal(nodes=[node(attrs={"k": None})]), r"\$.nodes\[0\].attrs"),
        (minimal(nodes=[node(attrs={"k": 1.5})]), r"\$.nodes\[0\].attrs"),
        (minimal(nodes=[node(attrs={"k": 2**63})]), "attrs"),
        (minimal(nodes=[node(attrs={"k": {"float": "one"}})]), "'one' is no float"),
        (minimal(nodes=[node(attrs={"k": {"float": 1.0, "x": 2}})]), "unknown field `x`"),
        (minimal(inputs=[{"name": "x", "shape": [1], "dtype": "f31"}]), r"\$.inputs\[0\].dtype"),
        (minimal(inputs=[{"name": "x", "shape": [1] * 9, "dtype": "f32"}]), r"\$.inputs\[0\].shape"),
        (minimal(inputs=[{"name": "x", "shape": [""], "dtype": "f32"}]), r"\$.inputs\[0\].shape"),
        (minimal(inputs=[{"name": "x", "shape": [], "dtype": "f32"}] * 2), "two inputs are named 'x'"),
        (minimal(outputs=["y", "z"]), "output 'z'"),
    ],
)
def test_bad_graphs(tmp_path: Path, graph: dict[str, Any] | str, text: str) -> None:
    assert_matches(refused(tmp_path, build({}, graph=graph if isinstance(graph, str) else json.dumps(graph))), text)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "the file is empty"),
        (b"\x01\x02", "has 2 bytes"),
        (struct.pack("<Q", 2**40) + b"{}", "is not a .vkc file"),
        (struct.pack("<Q", 100) + b"{}", "is truncated: a header of 100 bytes, 2 bytes are there"),
        (build(b'["a"]'), "does not begin with"),
        (build(b'{"w": }'), "the header is not legal JSON"),
        (build(b'{"\xff": 1}'), "the header is not legal JSON"),
        (build(b'{"w": 1, "w": 2}'), "'w' occurs twice"),
        (build(b"{}"), "without a graph"),
        (build(b'{"__metadata__": {"a": 1}}'), "__metadata__: Expected `str`"),
        (build(b'{"__metadata__": []}'), "__metadata__: Expected `object`"),
    ],
)
def test_bad_files(tmp_path: Path, data: bytes, text: str) -> None:
    assert_matches(refused(tmp_path, data), text)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        load_vkc(tmp_path / "missing.vkc")
    with pytest.raises(ModelError, match="is a directory"):
        load_vkc(tmp_path)
    with pytest.raises(ModelError, match=r"cannot be read .*too long"):
        load_vkc(tmp_path / ("m" * 300 + ".vkc"))
