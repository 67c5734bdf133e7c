"""Writing trace files, with rotation and resumption. Imports `format` and `read`."""
