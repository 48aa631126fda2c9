"""vkconv passes, --no-pass and --pass-dump."""

import json

import pytest
from cli_kit import vkconv
from every_pass import NETWORKS

from vkconv.cli.benched import read_entries
from vkconv.cli.options import parse_passes
from vkconv.core import UsageError
from vkconv.device import load_device
from vkconv.graph.vkc import save_vkc
from vkconv.plan.passes import PASSES

REWRITING = [entry.name for entry in PASSES if entry.run]
CALL = "conv2d:x=1x4x9x9,w=4x4x3x3"


@pytest.fixture
def model(tmp_path):
    save_vkc(NETWORKS["image"], tmp_path / "image.vkc")
    return tmp_path / "image.vkc"


def ops_of(*argv):
    """The ops of the nodes that a command plans, in order."""
    code, out, err = vkconv(*argv, "--json")
    assert code == 0, err
    return [node["call"].partition(":")[0] for node in json.loads(out)["nodes"]]


def test_passes_are_listed_in_order_with_what_they_do():
    code, out, _ = vkconv("passes")
    assert code == 0
    rows = [line for line in out.splitlines() if line.split()[:1] and line.split()[0].isdigit()]
    assert [line.split()[1] for line in rows] == [entry.name for entry in PASSES]
    assert all(entry.doc in line for entry, line in zip(PASSES, rows, strict=True))
    data = json.loads(vkconv("passes", "--json")[1])
    assert data["schema"] == "vkconv.passes/1"
    assert [(row["pass"], row["required"]) for row in data["passes"]] == [(p.name, p.required) for p in PASSES]


def test_names_of_passes_come_one_by_one_or_with_commas():
    assert parse_passes(None) == ()
    assert parse_passes(["fold_pad, fuse_chain", "fold_pad", "elide_copies"]) == (
        "fold_pad",
        "fuse_chain",
        "elide_copies",
    )
    with pytest.raises(UsageError, match="'' does not exist"):
        parse_passes(["fold_pad,"])


def test_explain_without_a_pass(model):
    command = ("explain", model, "--device", "lavapipe")
    assert ops_of(*command)[0] == "conv2d"
    assert ops_of(*command, "--no-pass", "fold_pad")[:2] == ["pad", "conv2d"]
    out = vkconv(*command, "--no-pass", "fold_pad,fuse_chain", "--no-pass", "fuse_residual")[1]
    assert "passes left out: fold_pad, fuse_chain, fuse_residual" in out
    assert "left out" not in vkconv(*command)[1]


def test_explain_and_show_save_the_graph_after_each_pass(model, tmp_path):
    for command in (("explain",), ("show", "--memory")):
        folder = tmp_path / command[0]
        code, out, _ = vkconv(*command, model, "--device", "lavapipe", "--pass-dump", folder, "--no-pass", "fold_pad")
        assert (
            code == 0
            and f"wrote {folder}: the graph as it is written, and after each of {len(REWRITING) - 1} passes" in out
        )
        names = sorted(path.name for path in folder.iterdir())
        assert names[:2] == ["00-as_written.txt", "01-spell_layouts.txt"] and "09-fold_pad.txt" not in names


@pytest.mark.long
def test_pack_leaves_a_pass_out(model, tmp_path):
    counts = []
    for more in ((), ("--no-pass", "fuse_chain", "--pass-dump", tmp_path / "graphs")):
        code, out, err = vkconv("pack", model, tmp_path / "pack", "--device", "lavapipe", *more)
        assert code == 0, err
        counts.append(int(out.partition(" dispatches")[0].rpartition(" ")[2]))
    assert counts[1] > counts[0] and "passes left out: fuse_chain" in out
    assert len(list((tmp_path / "graphs").iterdir())) == len(REWRITING)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["explain", "MODEL", "--no-pass", "fold_pda"], "'fold_pda' does not exist (did you mean 'fold_pad'?)"),
        (["explain", "MODEL", "--no-pass", "set_types"], "'set_types' is required; those that can be left out are"),
        (["explain", CALL, "--no-pass", "fold_pad"], "--no-pass is for models; a call runs as it is written"),
        (["explain", CALL, "--pass-dump", "DIR"], "--pass-dump is for models"),
        (["explain", "MODEL", "--pass-dump", "MODEL"], "cannot write"),
        (["show", "MODEL", "--no-pass", "fold_pad"], "--no-pass says how to plan a model for the memory it takes"),
        (["show", "MODEL", "--pass-dump", "DIR"], "--pass-dump says how to plan"),
        (["check", "MODEL", "--no-pass", "split_matmul"], "'split_matmul' is required"),
        (["check", CALL, "--no-pass", "fold_pad"], "--no-pass is for models"),
        (["check", "--all-ops", "--no-pass", "fold_pad"], "--all-ops checks the device by itself"),
        (["run", "MODEL", "--no-pass", "fold_pda"], "'fold_pda' does not exist"),
        (["run", "MODEL", "--fallback", "onnxruntime", "--no-pass", "fold_pad"], "and --no-pass cannot follow"),
        (["bench", "MODEL", "--no-pass", "set_types"], "'set_types' is required"),
        (["bench", CALL, "--workers", "dask://host:1", "--pass-dump", "DIR"], "--workers plans for many"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_makes_no_sense_is_refused(arguments, said, model, tmp_path):
    places = {"MODEL": model, "DIR": tmp_path / "dump"}
    where = ["--device", "lavapipe"] if arguments[0] in ("explain", "show") else []
    code, out, err = vkconv(*(places.get(word, word) for word in arguments), *where)
    assert (code, out) == (2, "") and err.startswith("error: ") and said in err
    assert not (tmp_path / "dump").exists()


@pytest.mark.long
def test_bench_measures_the_calls_of_the_plan_without_the_pass(model, tmp_path):
    device = load_device("lavapipe")
    entries = read_entries([str(model)], [], None, device, [], ("fold_pad",), tmp_path / "graphs")
    assert "pad" in [entry.op for entry in entries]
    assert len(list((tmp_path / "graphs").iterdir())) == len(REWRITING)
    assert "pad" not in [entry.op for entry in read_entries([str(model)], [], None, device, [])]
    with pytest.raises(UsageError, match="--no-pass is for models"):
        read_entries([CALL], ["peers"], None, device, [], ("fold_pad",))
    with pytest.raises(UsageError, match=r"has room for one model, and .*image\.vkc is another"):
        read_entries([str(model)] * 2, [], None, device, [], (), tmp_path / "both")
