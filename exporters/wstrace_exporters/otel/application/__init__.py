"""The faults of an application's own spans, counted in the process that opens them."""
