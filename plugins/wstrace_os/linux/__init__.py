"""What `wstrace_os` needs of Linux; imports on every system, works on this one."""
