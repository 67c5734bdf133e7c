"""Object stores, by obstore: what a URL names, what a bucket lists, ranged reads and uploads. Imports `format` only."""
