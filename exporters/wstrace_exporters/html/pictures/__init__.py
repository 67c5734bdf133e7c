"""The data of the pictures of a report, one module each: plain values for JSON, bounded whatever a trace holds."""
