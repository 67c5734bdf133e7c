"""What prefetching needs from Linux."""
