"""Programs that give themselves a title in place of their command line, as postgres and setproctitle do."""

#: Defines title(text) in a program: it writes over the arguments, and past them where the title is longer.
TITLE = """
def title(text):
    fields = open("/proc/self/stat").read().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    with open("/proc/self/mem", "r+b", 0) as memory:
        memory.seek(begin)
        memory.write(text.encode() + bytes(max(end - begin - len(text), 1)))
"""
