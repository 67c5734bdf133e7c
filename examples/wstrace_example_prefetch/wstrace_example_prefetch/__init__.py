"""An outsider's plugin: the command `prefetch`."""
