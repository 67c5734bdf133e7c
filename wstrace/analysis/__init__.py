"""What every view asks of a trace, answered once: which faults, counted how, which snapshot."""
