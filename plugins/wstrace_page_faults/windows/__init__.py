"""What `wstrace_page_faults` needs of Windows; imports on every system, works on this one."""
