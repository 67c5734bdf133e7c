"""What `wstrace_write_watch` needs of Windows; imports on every system, works on this one."""
