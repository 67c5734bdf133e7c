"""What `wstrace_mapped_files` needs of Windows; imports on every system, works on this one."""
