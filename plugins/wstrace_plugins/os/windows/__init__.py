"""The Windows backend of `wstrace_plugins.os`. It can be imported on every system, and works on Windows."""
