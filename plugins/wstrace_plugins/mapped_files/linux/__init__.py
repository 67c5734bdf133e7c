"""The Linux backend of `wstrace_plugins.mapped_files`. It can be imported on every system and works only on Linux."""
