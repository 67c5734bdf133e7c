"""The workload that a bare `wstrace run` traces: reads a mapped file, grows a list, loads a library."""

from __future__ import annotations

import sys
import tempfile

PAGE = 4096
PAGES = 1000


def main() -> None:
    """Touches a few thousand pages in ways that a summary tells apart."""
    import numpy as np

    with tempfile.NamedTemporaryFile() as file:
        file.truncate(PAGES * PAGE)
        mapped = np.memmap(file.name, dtype=np.uint8, mode="r")
        total = int(mapped[::PAGE].sum())
    grown = [bytes(PAGE) for _ in range(PAGES)]
    print(f"demo: mapped {PAGES} pages of a file (sum {total}) and grew a list by {len(grown)}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
