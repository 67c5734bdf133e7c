"""The names in wstrace's telemetry, in one place, because many of OpenTelemetry's own are still "development".

Source: OpenTelemetry semantic conventions 1.44, namespaces process.*, container.*, k8s.*, system.paging.*, file.*. What
they do not name is under `wstrace.*`. The names are written out, as the `_incubating` modules that hold them move
between releases.
"""

from __future__ import annotations

SCOPE = "wstrace"
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"

#: the ledger's stage for records that a backend did not receive
LOST = "lost_otel"
#: the stage of the spans that a session had no room to record
SPANS_LOST = "spans_lost"

# -- resource and span attributes ----------------------------------------------------------------------------------
PROCESS_PID = "process.pid"
PROCESS_PARENT_PID = "process.parent_pid"
PROCESS_NAME = "process.executable.name"
PROCESS_CREATION = "process.creation.time"
PROCESS_EXIT_CODE = "process.exit.code"
PROCESS_ARGUMENTS = "process.command_args"
SERVICE_NAME = "service.name"
ERROR_TYPE = "error.type"
CONTAINER_ID = "container.id"
POD_UID = "k8s.pod.uid"
CGROUP = "process.linux.cgroup"  # the path of a cgroup that is no container's
ROLE = "wstrace.role"  # "target", "other" (processes past the bound) or "tracer"

# -- metrics -------------------------------------------------------------------------------------------------------
PAGING_FAULTS = "process.paging.faults"
CONTAINER_PAGING_FAULTS = "container.paging.faults"
POD_PAGING_FAULTS = "k8s.pod.paging.faults"
CGROUP_PAGING_FAULTS = "wstrace.cgroup.paging.faults"  # of a cgroup that is neither
PAGE_FAULTS = "wstrace.page_faults"
MEMORY_USAGE = "process.memory.usage"
MEMORY_VIRTUAL = "process.memory.virtual"
CPU_TIME = "process.cpu.time"
WORKING_SET = "wstrace.working_set"
WRITTEN = "wstrace.written_pages"
RECORDS = "wstrace.records"

# -- attributes of points, records and spans -----------------------------------------------------------------------
FAULT_TYPE = "system.paging.fault.type"
MINOR, MAJOR = "minor", "major"
FILE_PATH = "file.path"
KIND = "wstrace.mapping.kind"
SHARED = "wstrace.page.shared"
STAGE = "wstrace.stage"
WHO = "wstrace.who"
CPU_MODE = "cpu.mode"
ADDRESS = "wstrace.fault.address"
INSTRUCTION = "wstrace.fault.instruction"
INSTRUCTION_FILE = "wstrace.fault.instruction.file"
FAULT_COLUMN = "wstrace.fault."  # Followed by the name of a column that has no name of its own here.
ACCESS = "wstrace.fault.access"
THREAD = "wstrace.thread.id"  # The system's id; `thread.id` means Python's own identifier.
WEIGHT = "wstrace.sample.weight"
SPAN_MINOR = "wstrace.faults.minor"
SPAN_MAJOR = "wstrace.faults.major"
SPAN_BYTES = "wstrace.faults.bytes"
SPAN_QUALITY = "wstrace.faults.quality"

# -- events --------------------------------------------------------------------------------------------------------
EVENT_FAULT = "wstrace.page_fault"
EVENT_START = "wstrace.process.start"
EVENT_EXIT = "wstrace.process.exit"
EVENT_LOSS = "wstrace.loss"

#: The label for processes and modules without one of their own.
OTHER = "other"
UNKNOWN = "unknown"

#: The limit on an attribute value, whatever OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT is: backends refuse longer ones.
MAX_VALUE = 4096
