"""wstrace.delta()."""
