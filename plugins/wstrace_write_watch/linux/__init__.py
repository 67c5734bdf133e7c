"""What `wstrace_write_watch` needs of Linux; imports on every system, works on this one."""
