"""Read by mypy alone: the backends for Windows keep their plugins' Protocols."""

from __future__ import annotations

from wstrace_plugins.working_set import backend as working_set
from wstrace_plugins.working_set.windows import backend as windows_working_set
from wstrace_plugins.write_watch import backend as write_watch
from wstrace_plugins.write_watch.windows import backend as windows_write_watch

WORKING_SET: working_set.Backend = windows_working_set
WRITE_WATCH: write_watch.Backend = windows_write_watch
