"""The Windows backend of `wstrace_pytest`."""
