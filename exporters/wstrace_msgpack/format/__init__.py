"""The trace file's format: how bytes lie in it. Imports no other room of this package."""
