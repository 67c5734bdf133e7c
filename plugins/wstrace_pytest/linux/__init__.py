"""The Linux backend of `wstrace_pytest`."""
