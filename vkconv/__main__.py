"""``python -m vkconv``: the same as the console command."""

from vkconv.entry import main

if __name__ == "__main__":
    main()
