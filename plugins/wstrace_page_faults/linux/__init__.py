"""What `wstrace_page_faults` needs of Linux; imports on every system, works on this one."""
