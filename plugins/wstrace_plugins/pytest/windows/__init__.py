"""The Windows backend of `wstrace_plugins.pytest`."""
