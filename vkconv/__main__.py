"""``python -m vkconv``: the same as the console command."""

from vkconv.cli import main

if __name__ == "__main__":
    main()
