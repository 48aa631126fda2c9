"""Damaged .vkc files that are still legal JSON: reading and planning them raises VkconvError or nothing."""

import json
import random
import re
import struct

import pytest
from graph_kit import f32, i64, make_graph

from vkconv.core import VkconvError
from vkconv.device import load_device
from vkconv.graph.vkc import METADATA_KEY, load_vkc, save_vkc
from vkconv.plan.planner import plan

DEVICE = load_device("lavapipe")
COUNT = 1000
# What replaces a word of the JSON: the edges of every number format, wrong types, other words of the file.
EXTREMES = (
    *("0", "1", "-1", "2", "3", "7", "65536", "2147483647", "-2147483648", "4294967296", "9223372036854775807"),
    *("-9223372036854775808", "9223372036854775808", "1e300", "0.5", "-0.0", '{"float":1e300}', '{"float":"nan"}'),
    *('{"float":-1.5}', '{"float":["inf"]}', '""', '"n"', '"f16"', '"i64"', '"bool"', '"bf16"', "true", "null"),
    *("[]", "[1]", "[-1,0]", "[1,1,1,1]", "[0,9223372036854775807]", '[""]', "{}"),
)
WORD = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d[\d.e+-]*|true|false|null|\[[^\[\]{}]*\]')


def network():
    """A graph of many kinds of node, attribute and host operand."""
    nodes = [
        ("conv2d", "x w b", "c", {"padding": (1, 1, 1, 1), "stride": (2, 2)}),
        ("clip", "c", "k", {"a": 0.0, "b": 6.0}),
        ("pool2d", "k", "p", {"kind": "max", "kernel": (2, 2), "ceil_mode": True}),
        ("pad", "p pads", "q", {"value": 1.5}),
        ("resize", "q", "r", {"mode": "linear", "scales": (1.0, 1.0, 2.0, 1.5)}),
        ("split", "r", "s0 s1", {"axis": 1, "num_outputs": 2}),
        ("concat", "s1 s0", "t", {"axis": -3}),
        ("slice", "t starts ends", "u"),
        ("constant_of_shape", "one", "v", {"value": 2.0, "dtype": "f32"}),
        ("mul", "u v", "m"),
        ("reshape", "m shape", "o"),
        ("transpose", "o", "h", {"perm": (1, 0)}),
        ("layer_norm", "h ln", "l", {"eps": 1e-5}),
        ("softmax", "l", "y", {"axis": -1}),
        ("reduce", "l", "z", {"op": "mean", "axes": (0,)}),
    ]
    constants = {
        **{"w": f32(4, 3, 3, 3), "b": f32(4), "ln": f32(2)},
        **{"pads": i64(0, 0, 1, 0, 0, 0, 0, 1), "starts": i64(0, 0), "ends": i64(2, 4)},
        **{"one": i64(1), "shape": i64(2, -1)},
    }
    return make_graph({"x": ("n", 3, 8, 8)}, nodes, "y z", constants)


def damaged(text, rng):
    """The text with one to three of its words replaced, dropped or swapped for another."""
    for _ in range(rng.randint(1, 3)):
        found = list(WORD.finditer(text))
        word, other = rng.choice(found), rng.choice(found)
        new = rng.choice((rng.choice(EXTREMES), rng.choice(EXTREMES), other.group()))
        text = text[: word.start()] + new + text[word.end() :]
    return text


def rebuilt(data, graph_text):
    """The file with another graph in its header."""
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"][METADATA_KEY] = graph_text
    new = json.dumps(header).encode()
    return struct.pack("<Q", len(new)) + new + data[8 + length :]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_damaged_graph_raises_nothing_but_our_errors(tmp_path, seed):
    rng, path = random.Random(seed), tmp_path / "net.vkc"
    save_vkc(network(), path)
    data = path.read_bytes()
    text = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])["__metadata__"][METADATA_KEY]
    refused = 0
    for i in range(COUNT):
        graph_text = damaged(text, rng)
        path.write_bytes(rebuilt(data, graph_text))
        try:
            graph = load_vkc(path)
            plan(graph, DEVICE, shapes={"x": (1, 3, 8, 8)} if "x" in graph.inputs else {})
        except VkconvError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}, damage {i}: {type(error).__name__} from {graph_text}") from error
    assert COUNT // 2 < refused < COUNT  # else the damage did no harm, or all of it was the same
