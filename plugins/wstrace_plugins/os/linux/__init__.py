"""The Linux backend of `wstrace_plugins.os`. It can be imported on every system, and works only on Linux."""
