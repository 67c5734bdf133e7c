"""Reading trace files, whole, cut, damaged or still growing. Imports `format` only."""
