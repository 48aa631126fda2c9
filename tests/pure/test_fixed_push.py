"""Push constants as constants of pipelines: the modules, and which launches of a plan have them so."""

import itertools
import subprocess

import pytest
from cli_kit import vkconv

from vkconv.check.conformance import call_of, checks, refusal, row_of, with_packed_storage
from vkconv.compiler import pipeline_spirv, spirv
from vkconv.compilers.pipelines import pipeline_of
from vkconv.core import DType, ShaderError
from vkconv.device import load_device
from vkconv.fixed import Unfixed
from vkconv.glslang import compile_shader
from vkconv.graph.vkc import save_vkc
from vkconv.kernel import Shader
from vkconv.ops import OPS, all_shaders
from vkconv.ops.core.calls import parse_call
from vkconv.plan.commands import Launch
from vkconv.plan.explain import explain_plan, explain_plan_data
from vkconv.plan.fixing import PUSHING, fixed_str
from vkconv.plan.planner import Options, plan
from vkconv.plan.single import graph_of_shapes
from vkconv.shader_tools import tool_environment, tool_paths
from vkconv.spirv import instructions, words_of

H200, LAVAPIPE, MALI = map(load_device, ("h200", "lavapipe", "mali-g57"))
CONV = "conv2d:x=1x16x8x8,w=16x16x3x3,p=1,b=16,act=relu"
SHADER = """#version 450
layout(local_size_x = 32) in;
layout(push_constant) uniform Push { int n; ivec2 pair; int steps[3]; };
layout(set = 0, binding = 0) buffer Y { int y[]; };
void main() { y[0] = BODY; }
"""
_VARIABLE, _PUSH_CONSTANT = 59, 9


VARIANTS = {
    name: sorted(shaders, key=lambda shader: len(shader.defines))
    for name, shaders in itertools.groupby(sorted(all_shaders(), key=lambda s: s.stem), key=lambda s: s.stem)
}


def launches(call, device=H200, **options):
    made = plan(graph_of_shapes(parse_call(call, OPS)), device, Options(**options)).plan
    return [command for command in made.run if isinstance(command, Launch)]


def valid(code, folder):
    """The module as text, once spirv-val has found it valid."""
    (folder / "code.spv").write_bytes(code)
    for tool, *arguments in (("spirv-val", "--target-env", "vulkan1.1"), ("spirv-dis",)):
        path = next(tool_paths(tool))
        command = [str(path), *arguments, str(folder / "code.spv")]
        done = subprocess.run(command, capture_output=True, text=True, env=tool_environment(path), timeout=60)
        assert not done.returncode, done.stdout + done.stderr
    return done.stdout


def compiled(folder, body):
    (folder / "fixed.comp").write_text(SHADER.replace("BODY", body))
    return compile_shader(Shader("fixed"), folder)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_every_module_can_do_without_its_push_constants(name, tmp_path):
    for shader in VARIANTS[name]:
        count_ = sum(field.count for field in shader.interface.push)
        code = Unfixed.of(spirv(shader), shader.key).fixed(range(1, count_ + 1))
        assert not any(op == _VARIABLE and o[2] == _PUSH_CONSTANT for op, o in instructions(words_of(code), "fixed"))
    valid(code, tmp_path)


def test_words_come_to_the_places_that_were_pushed(tmp_path):
    text = valid(Unfixed.of(compiled(tmp_path, "n - steps[1]"), "fixed").fixed([70, 0, 0, 0, 81, 92, 103]), tmp_path)
    constants = {line.split()[0]: line.split()[-1] for line in text.splitlines() if " = OpConstant %int " in line}
    (difference,) = [line.split() for line in text.splitlines() if "OpISub" in line]
    assert [constants[name] for name in difference[-2:]] == ["70", "92"]
    assert "PushConstant\n" not in text


def test_an_array_at_places_that_are_no_constants_is_a_variable_of_the_invocation(tmp_path):
    code = Unfixed.of(compiled(tmp_path, "steps[gl_LocalInvocationID.x % 3] + steps[y[1]]"), "fixed")
    text = valid(code.fixed([70, 0, 0, 0, 81, 92, 103]), tmp_path)
    (variable,) = [line for line in text.splitlines() if "OpVariable" in line and " Private " in line]
    (words,) = [line.split()[-3:] for line in text.splitlines() if line.strip().startswith(variable.split()[-1] + " =")]
    constants = {line.split()[0]: line.split()[-1] for line in text.splitlines() if " = OpConstant %int " in line}
    assert [constants[word] for word in words] == ["81", "92", "103"]


@pytest.mark.parametrize("body", ["pair.x", "pair[y[1]]"])
def test_what_is_no_word_is_an_error(body, tmp_path):
    with pytest.raises(ShaderError, match="shader fixed: its SPIR-V takes push constants that are no words"):
        Unfixed.of(compiled(tmp_path, body), "fixed")


def test_a_device_has_them_by_its_policy_and_options_overrule_it():
    assert [one.fixed is not None for one in launches(CONV)] == [True]
    assert [one.fixed is not None for one in launches(CONV, LAVAPIPE)] == [False]
    assert [one.fixed is not None for one in launches(CONV, fixed_push=False)] == [False]
    assert [one.fixed is not None for one in launches(CONV, LAVAPIPE, fixed_push=True)] == [True]


def test_what_loads_weights_pushes():
    made = plan(graph_of_shapes(parse_call(CONV, OPS)), H200).plan
    load = [command for command in made.load if isinstance(command, Launch)]
    assert load and all(one.fixed is None and one.push for one in load)


def test_tiles_that_were_slower_so_push():
    pushing, adding = launches("matmul:a=6272x1536,b=1536x384")
    assert pushing.shader.stem == "matmul_shared" and pushing.push and pushing.fixed is None
    assert adding.fixed is not None


def test_kernels_push_by_policy_where_no_option_asks_for_constants():
    call, adreno = "conv2d:x=1x960x1x1,w=240x960x1x1,b=240,act=relu", load_device("adreno-740")
    for asked, fixed, words in (
        (None, False, "0 of 1 launches with push constants as constants of their pipelines, 1 pushing by policy"),
        (True, True, "1 of 1 launches with push constants as constants of their pipelines"),
        (False, False, "0 of 1 launches with push constants as constants of their pipelines"),
    ):
        made = plan(graph_of_shapes(parse_call(call, OPS)), adreno, Options(fixed_push=asked)).plan
        (launch,) = (command for command in made.run if isinstance(command, Launch))
        assert launch.shader.stem == "matmul_skinny" and (launch.fixed is not None) == fixed != bool(launch.push)
        assert fixed_str(made) == words
    assert [one.fixed is not None for one in launches(CONV, adreno)] == [True]


def test_all_that_push_by_policy_are_kernels():
    stems = {shader.stem for shader in all_shaders()}
    assert {stem for row in PUSHING.every() for stem in row} <= stems and any(PUSHING.every())


def test_launches_share_a_pipeline_where_all_words_are_the_same():
    same, other = launches(CONV)[0], launches(CONV.replace("x=1x16x8x8", "x=2x16x8x8"))[0]
    assert same.pipeline == launches(CONV)[0].pipeline != other.pipeline
    assert pipeline_spirv(same.shader, same.fixed) != pipeline_spirv(other.shader, other.fixed)
    assert pipeline_of(same).digest != pipeline_of(other).digest


def test_explain_says_how_many(tmp_path):
    made = plan(graph_of_shapes(parse_call(CONV, OPS)), H200).plan
    assert "; 1 of 1 launches with push constants as constants of their pipelines" in explain_plan(made).title
    assert explain_plan_data(made)["fixed_push"] == 1
    save_vkc(graph_of_shapes(parse_call(CONV, OPS)), tmp_path / "conv.vkc")
    for asked, said in (("--fixed-push", True), ("--no-fixed-push", False)):
        code, out, _ = vkconv("explain", tmp_path / "conv.vkc", "-d", "lavapipe", asked)
        assert code == 0 and ("1 of 1 launches with push constants" in out) == said


def test_explain_of_a_call_says_so_too():
    for call, words in (
        (CONV, "1 of 1 launches with push constants as constants of their pipelines"),
        (
            "matmul:a=6272x1536,b=1536x384",
            "1 of 2 launches with push constants as constants of their pipelines, 1 pushing",
        ),
    ):
        code, out, _ = vkconv("explain", call, "-d", "h200")
        assert code == 0 and words in " ".join(out.split())
    code, out, _ = vkconv("explain", CONV, "-d", "h200", "--no-fixed-push")
    assert code == 0 and "0 of 1 launches with push constants" in " ".join(out.split())
    code, out, _ = vkconv("explain", CONV, "-d", "lavapipe")
    assert code == 0 and "push constants" not in out


@pytest.mark.long
def test_one_check_of_each_route_in_each_form_has_constants_where_the_device_has_them():
    work = checks(MALI, ["softmax"], [DType.F32, DType.F16])
    facts = {False: MALI, True: with_packed_storage(MALI)}
    run = [one for one in work if not refusal(one.path, call_of(one.text), facts[one.is_packed])]
    ways_run = {(one.path, one.form) for one in run}
    fixed = [(one.path, one.form) for one in work if one.fixed]
    assert len(fixed) == len({*fixed}) and {*fixed} == ways_run and len(run) > 2 * len(fixed)
    assert {one.fixed for one in work} == {True, False}
    assert {one.fixed for one in checks(LAVAPIPE, ["softmax"])} == {None}
    assert {one.fixed for one in checks(LAVAPIPE, ["softmax"], fixed_push=True)} == {True}
    pushing = next(one for one in run if not one.fixed)
    for one, option in ((run[0], "--fixed-push"), (pushing, "--no-fixed-push")):
        assert row_of(one, "FAILED").command().endswith(option)
    assert row_of(run[0], "FAILED").conditions("normals") == "with constants in place of push constants: "
    assert "push" not in row_of(checks(LAVAPIPE, ["softmax"])[0], "FAILED").command()
