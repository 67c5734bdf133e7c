"""Read by mypy alone: the backends for Linux keep their plugins' Protocols."""

from __future__ import annotations

from wstrace_plugins.working_set import backend as working_set
from wstrace_plugins.working_set.linux import backend as linux_working_set
from wstrace_plugins.write_watch import backend as write_watch
from wstrace_plugins.write_watch.linux import backend as linux_write_watch

WORKING_SET: working_set.Backend = linux_working_set
WRITE_WATCH: write_watch.Backend = linux_write_watch
