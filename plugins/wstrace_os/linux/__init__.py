"""The Linux backend of `wstrace_os`. It can be imported on every system, and works only on Linux."""
