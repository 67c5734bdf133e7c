# What wstrace/__init__.py gives on first use, for type checkers.
from wstrace.batch import Batch as Batch
from wstrace.batch import Dictionary as Dictionary
from wstrace.errors import TraceFileError as TraceFileError
from wstrace.errors import TraceFileNotFound as TraceFileNotFound
from wstrace.errors import Unavailable as Unavailable
from wstrace.errors import WstraceError as WstraceError
from wstrace.hookspecs import Format as Format
from wstrace.hookspecs import Reference as Reference
from wstrace.hookspecs import hookimpl as hookimpl
from wstrace.interfaces import Context as Context
from wstrace.interfaces import Enricher as Enricher
from wstrace.interfaces import Exporter as Exporter
from wstrace.interfaces import Resolver as Resolver
from wstrace.interfaces import Source as Source
from wstrace.ledger import Ledger as Ledger
from wstrace.session import Session as Session
from wstrace.table import Batches as Batches
from wstrace.trace import Trace as Trace
from wstrace.trace_info import Level as Level
from wstrace.trace_info import TraceInfo as TraceInfo
from wstrace_exporters.msgpack.read.trace import open_trace as open_trace
from wstrace_exporters.otel import otel as otel
from wstrace_exporters.otel.otel import span as span
from wstrace_plugins.mapped_files import mapped_file as mapped_file
from wstrace_plugins.working_set.delta import delta as delta
from wstrace_plugins.working_set.empty import empty_working_set as empty_working_set
from wstrace_plugins.working_set.working_set import working_set as working_set
from wstrace_plugins.write_watch.write_watch import MemoryWatch as MemoryWatch
from wstrace_plugins.write_watch.write_watch import WriteWatch as WriteWatch

__version__: str
__all__: list[str]
