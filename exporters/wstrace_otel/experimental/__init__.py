"""Every fault as a log record, and profiles: opt-in, and subject to change."""
