"""What `wstrace_working_set` needs of Linux; imports on every system, works on this one."""
