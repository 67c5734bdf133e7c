"""Which fault made each resident page arrive, and by whom memory is held: the composition of a process."""
