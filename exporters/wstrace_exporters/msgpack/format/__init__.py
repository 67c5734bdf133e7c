"""The format of the trace file: the layout of its bytes. It imports no other part of this package."""
