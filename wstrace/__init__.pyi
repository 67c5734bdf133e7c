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
from wstrace.interfaces import Level as Level
from wstrace.interfaces import Resolver as Resolver
from wstrace.interfaces import Source as Source
from wstrace.ledger import Ledger as Ledger
from wstrace.session import Session as Session
from wstrace_msgpack.reader import open_trace as open_trace

__version__: str
