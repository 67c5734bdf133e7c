"""The Linux backend of `wstrace_plugins.pytest`."""
