"""The Linux backend of `wstrace_plugins.page_faults`. It can be imported on every system and works only on Linux.

The way of a batch: `rings` (the kernel's buffers) -> `samples` (faults in order of time) and `side_band` (processes and
their mappings, with `calls` that take content away) -> `backend` (batches) -> `account` (recorded + lost = counted).
`events` opens what writes into the rings, `arming` and `group_arming` on whom, `polling` reads /proc beside them, and
`python_stacks` adds the frames of Python. `perf_event` has the kernel's structures and calls.
"""
