"""The Windows backend of `wstrace_mapped_files`. It can be imported on every system, and works on Windows."""
