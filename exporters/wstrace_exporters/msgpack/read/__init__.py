"""Reading trace files, whole, cut or damaged. Imports `format` only."""
