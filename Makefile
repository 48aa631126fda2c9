# hundreds of processes start in a run, and without bytecode each of them compiles all of vkconv again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup run docs check types pure test stages exhaustive drivers boards wheels compile-phones sanitize audit clean gpu-must-pass

# tests share the cores, but for those that watch time, memory or processes
each := -n logical --dist worksteal

# a test runs a kernel once or twice: what LLVM's optimizations cost lavapipe is more than they save there; SwiftShader and
# the tests alone keep their compilers' own settings
lavapipe := GALLIVM_PERF=nopt LP_NUM_THREADS=0

# every core runs tests already: threads that share a reference's products would only spin
export OPENBLAS_NUM_THREADS := 1

# .venv with vkconv and all it needs; missing Debian packages are installed when run as root
setup:
	@tools/setup.sh

# the main job: read a line of text with a published recogniser, on the best Vulkan device present
run: setup
	.venv/bin/python examples/read_text.py

# lint, types, layers and the tests that need no Vulkan, but for the long ones: a minute and a half on two cores once built
check: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	$(MAKE) --no-print-directory -j2 types pure

# one core's work, beside the tests
types:
	.venv/bin/mypy
	.venv/bin/lint-imports

pure:
	.venv/bin/python tools/thin.py --time .venv/bin/pytest -q $(each) tests/pure -m 'not long'

# the documentation as a site, in build/site: made offline, fails at a warning or a link that leads nowhere
docs: setup
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build -q --strict

# all of that, the long ones, then the tests on devices: lavapipe, under the validation layer with synchronization
# validation, then the other drivers and, beside them, the boards, which wait or emulate on one core; on a slow machine a
# share of these (tools/thin.py)
test: check
	VKCONV_THIN=$${VKCONV_THIN:-$$(.venv/bin/python tools/thin.py)} $(MAKE) --no-print-directory stages

stages:
	.venv/bin/pytest -q $(each) tests/pure -m long
	.venv/bin/pytest -q $(each) tests/suites
	$(lavapipe) .venv/bin/pytest -q $(each) tests/gpu -m 'not alone'
	.venv/bin/pytest -q tests/gpu -m alone
	.venv/bin/python tools/boards.py
	$(MAKE) --no-print-directory -j2 --output-sync=target drivers boards

# test for every shipped device in place of one of each driver, and with all of what test runs a share of: before a release,
# and after a change of the chooser or of many kernels
exhaustive: export VKCONV_EXHAUSTIVE := 1
exhaustive: export VKCONV_THIN := 1
exhaustive: test

# 16-bit floats and cooperative matrices on a newer Mesa's lavapipe, every op on SwiftShader, and what the compilers of GPUs
# that are not here make of the kernels
drivers: setup
	$(lavapipe) tools/drivers.sh mesa -m pytest -q $(each) tests/gpu -m drivers
	tools/drivers.sh swiftshader -m vkconv check --all-ops --few --dtype f32 $$(.venv/bin/python tools/thin.py --ops)
	.venv/bin/vkconv compilers install amd64 --yes --any-version || [ "$${CI:-}" != true ]
	.venv/bin/pytest -q $(each) tests/compilers

# vkconv phone through a real adb, and the player of arm64 on arm64 lavapipe, emulated
boards: setup
	.venv/bin/python tools/boards.py
	.venv/bin/pytest -q tests/boards

# a manylinux wheel, installed into a clean environment without a compiler
wheels: setup
	tools/build_wheels.sh

# what the planner takes first for Mali, Raspberry Pi and PowerVR, by their own compilers, emulated: fails where it is worse
# than bench/results/compiled, and says what; what was compiled before is kept
compile-phones: setup
	.venv/bin/vkconv compilers install arm64 --yes
	.venv/bin/python tools/first_choices.py

# the bridge and the player built with AddressSanitizer and UndefinedBehaviorSanitizer, and their tests
sanitize: setup
	tools/sanitize.sh

# what must be right on a GPU before a release, in 10 minutes there; the result is committed
gpu-must-pass: setup
	.venv/bin/python tools/must_pass.py

# known vulnerabilities of what CI installs: asks PyPI's advisory service, and fails where that cannot be reached
audit: setup
	python3 -m venv build/audit
	build/audit/bin/pip install -q pip-audit
	build/audit/bin/pip-audit --strict --disable-pip --require-hashes -r tools/requirements-3.11.lock

clean:
	rm -rf .venv build
