"""The flags of private memory, for tests that are collected on Windows too."""

import mmap

PRIVATE = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
