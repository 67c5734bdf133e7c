"""What is known of CPython: the layouts of its structures by version; its line tables and strings, from memory."""
