"""The live screen: who faults and who grows in running processes, now. The command `top`.

`refresh` sums what is kept of a trace at a moment, by the analysis that reports have, and `live` is the exporter that
does so again and again, in bounded memory. `screen` makes lines of text of the figures and answers keys; `app` draws
these lines by Textual, which nothing else here needs.
"""
