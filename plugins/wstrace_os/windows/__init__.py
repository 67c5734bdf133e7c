"""What `wstrace_os` needs of Windows; imports on every system, works on this one."""
