"""The daemon on Linux: a session that is held within its limits, and the health endpoint."""
