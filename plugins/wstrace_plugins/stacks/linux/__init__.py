"""What reads the running system: its processes' files, perf maps, and kernel."""
