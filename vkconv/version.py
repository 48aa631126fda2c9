"""The version of vkconv, for those that may not import the package itself."""

VERSION = "1.1.0.dev0"
