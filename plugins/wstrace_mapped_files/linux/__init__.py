"""What `wstrace_mapped_files` needs of Linux; imports on every system, works on this one."""
