"""Placeholder until its code lands."""
