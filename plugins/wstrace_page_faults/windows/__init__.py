"""The Windows backend of `wstrace_page_faults`. It can be imported on every system, and works on Windows."""
