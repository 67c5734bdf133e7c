"""The daemon on Linux: the process that holds it within its limits, and the session, a child process of its own."""
