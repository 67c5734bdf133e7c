"""The one room that prints for people: outputs, tables, bars and the live line. Nothing else in wstrace uses rich.

What is shown passes wstrace.text.printable in here, once: lines, titles, column heads and every cell.
"""
