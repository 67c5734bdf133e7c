"""What two plugins know of CPython: its version and layout, from its file; its line tables and strings, from memory."""
