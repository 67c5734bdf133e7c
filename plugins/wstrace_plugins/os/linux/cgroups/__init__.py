"""Control groups: where they are mounted, what their paths tell, their processes and their memory (cgroups(7))."""
