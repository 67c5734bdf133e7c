"""The Linux part of `wstrace_os`. It can be imported on every system, but it works only on Linux."""
