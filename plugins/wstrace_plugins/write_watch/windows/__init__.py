"""The Windows backend of `wstrace_plugins.write_watch`. It can be imported on every system, and works on Windows."""
