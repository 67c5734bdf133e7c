"""The Linux backend of `wstrace_plugins.page_faults`. It can be imported on every system and works only on Linux."""
