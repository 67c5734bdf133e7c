"""The Windows backend of `wstrace_plugins.working_set`. It can be imported on every system, and works on Windows."""
