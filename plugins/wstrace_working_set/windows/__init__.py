"""What `wstrace_working_set` needs of Windows; imports on every system, works on this one."""
