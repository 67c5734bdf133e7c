# what the plugins add, through the hook wstrace_api
from wstrace.batch import Batch as Batch
from wstrace.batch import Dictionary as Dictionary
from wstrace.errors import TraceFileError as TraceFileError
from wstrace.errors import Unavailable as Unavailable
from wstrace.errors import WstraceError as WstraceError
from wstrace.hookspecs import hookimpl as hookimpl
from wstrace.interfaces import Command as Command
from wstrace.interfaces import Context as Context
from wstrace.interfaces import Enricher as Enricher
from wstrace.interfaces import Exporter as Exporter
from wstrace.interfaces import Format as Format
from wstrace.interfaces import Level as Level
from wstrace.interfaces import Resolver as Resolver
from wstrace.interfaces import Source as Source
from wstrace.ledger import Ledger as Ledger
from wstrace.session import Session as Session
from wstrace.trace import Trace as Trace
from wstrace_mapped_files.question import mapped_file as mapped_file
from wstrace_msgpack.read.trace import open_trace as open_trace
from wstrace_otel import otel as otel
from wstrace_otel.application.span import span as span
from wstrace_working_set.delta import delta as delta
from wstrace_working_set.empty import empty_working_set as empty_working_set
from wstrace_working_set.working_set import working_set as working_set
from wstrace_write_watch.agent import agent as agent
from wstrace_write_watch.write_watch import MemoryWatch as MemoryWatch
from wstrace_write_watch.write_watch import WriteWatch as WriteWatch

__version__: str
