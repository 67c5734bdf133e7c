"""Prints for people: outputs, tables, bars and the live line. Nothing else in wstrace uses rich.

Every line, heading and cell passes wstrace.text.printable here, once.
"""
