"""What every view needs of a trace, answered in one place: which faults, which counts, which snapshot."""
