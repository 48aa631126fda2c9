.PHONY: setup check clean

# .venv with vkconv and all it needs; missing Debian packages are installed when run as root
setup:
	@tools/setup.sh

# lint, types, layers and the tests that need no Vulkan
check: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/pytest -q tests/pure

clean:
	rm -rf .venv build
