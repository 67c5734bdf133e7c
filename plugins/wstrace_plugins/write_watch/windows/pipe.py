r"""A named pipe of one user on one machine, between the agent and the tracer.

Only the user who created it may open it, clients on other machines are rejected, and a client lets the server identify
it but not impersonate it.
Source: Microsoft Learn, CreateNamedPipeW, ConnectNamedPipe, CreateFileW ("Impersonation Levels"), PeekNamedPipe;
"Security Descriptor String Format".
"""

from __future__ import annotations

import ctypes
import struct
import time
from ctypes import c_char_p, c_int32, c_uint32, c_void_p, c_wchar_p

from wstrace_plugins.os.foreign import Foreign, declare
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import token

PREFIX = "\\\\.\\pipe\\"
SECONDS = 5.0
_PAUSE_SECONDS = 0.0005
_LENGTH = struct.Struct("<I")
_CHUNK = 1 << 16

_PIPE_ACCESS_DUPLEX, _FIRST_PIPE_INSTANCE = 0x3, 0x8_0000
_REJECT_REMOTE_CLIENTS = 0x8  # with PIPE_TYPE_BYTE | PIPE_READMODE_BYTE | PIPE_WAIT, which are 0
_GENERIC_READ_WRITE, _OPEN_EXISTING = 0xC000_0000, 3
_SQOS_PRESENT, _IDENTIFICATION = 0x10_0000, 0x1_0000
_SDDL_REVISION = 1
_ERROR_PIPE_BUSY, _ERROR_PIPE_CONNECTED = 231, 535

_CreateNamedPipeW = declare("kernel32.dll", "CreateNamedPipeW", c_void_p, c_wchar_p, *[c_uint32] * 6, c_void_p)
_ConnectNamedPipe = declare("kernel32.dll", "ConnectNamedPipe", c_int32, c_void_p, c_void_p)
_DisconnectNamedPipe = declare("kernel32.dll", "DisconnectNamedPipe", c_int32, c_void_p)
_WaitNamedPipeW = declare("kernel32.dll", "WaitNamedPipeW", c_int32, c_wchar_p, c_uint32)
_PeekNamedPipe = declare("kernel32.dll", "PeekNamedPipe", c_int32, c_void_p, c_void_p, c_uint32, *[c_void_p] * 3)
_CreateFileW = declare(
    "kernel32.dll", "CreateFileW", c_void_p, c_wchar_p, c_uint32, c_uint32, c_void_p, c_uint32, c_uint32, c_void_p
)
_ReadFile = declare("kernel32.dll", "ReadFile", c_int32, c_void_p, c_void_p, c_uint32, c_void_p, c_void_p)
_WriteFile = declare("kernel32.dll", "WriteFile", c_int32, c_void_p, c_char_p, c_uint32, c_void_p, c_void_p)
_LocalFree = declare("kernel32.dll", "LocalFree", c_void_p, c_void_p)
_GetNamedPipeServerProcessId = declare("kernel32.dll", "GetNamedPipeServerProcessId", c_int32, c_void_p, c_void_p)
_GetNamedPipeClientProcessId = declare("kernel32.dll", "GetNamedPipeClientProcessId", c_int32, c_void_p, c_void_p)
_SecurityDescriptor = declare(
    "advapi32.dll",
    "ConvertStringSecurityDescriptorToSecurityDescriptorW",
    c_int32,
    c_wchar_p,
    c_uint32,
    c_void_p,
    c_void_p,
)


class _SecurityAttributes(ctypes.Structure):
    """SECURITY_ATTRIBUTES."""

    _fields_ = [("length", c_uint32), ("descriptor", c_void_p), ("inherit", c_int32)]


class Pipe:
    """One connected end of a pipe. A message is sent as its length and its bytes."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def server(self) -> int:
        """The pid of the process that created the pipe; 0 when the system does not say."""
        return self._end(_GetNamedPipeServerProcessId)

    def client(self) -> int:
        """The pid of the process that opened the pipe; 0 when the system does not say."""
        return self._end(_GetNamedPipeClientProcessId)

    def _end(self, question: Foreign) -> int:
        pid = c_uint32()
        return pid.value if question(self.handle, ctypes.addressof(pid)) else 0

    def send(self, message: bytes) -> None:
        """Sends a message. Raises OSError when the other end is closed."""
        whole, at, done = _LENGTH.pack(len(message)) + message, 0, c_uint32()
        while at < len(whole):
            part = whole[at : at + _CHUNK]
            if not _WriteFile(self.handle, part, len(part), ctypes.addressof(done), None) or not done.value:
                raise _error("WriteFile")
            at += done.value

    def receive(self, limit: int, seconds: float | None = None) -> bytes:
        """The next message.

        Args:
            limit: the most bytes that it may have.
            seconds: how long to wait for each of its parts; None = without limit.

        Raises:
            TimeoutError: nothing came within that time.
            OSError: the other end is closed, or sent a longer message.
        """
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, seconds))
        if length > limit:
            raise OSError(f"a message of {length} bytes where {limit} may come")
        return self._read(length, seconds)

    def _read(self, size: int, seconds: float | None) -> bytes:
        parts, buffer, done = bytearray(), ctypes.create_string_buffer(min(size, _CHUNK) or 1), c_uint32()
        while len(parts) < size:
            if seconds is not None:
                self._wait(seconds)
            wanted = min(size - len(parts), len(buffer))
            if not _ReadFile(self.handle, ctypes.addressof(buffer), wanted, ctypes.addressof(done), None):
                raise _error("ReadFile")
            parts += buffer.raw[: done.value]
        return bytes(parts)

    def _wait(self, seconds: float) -> None:
        """Waits until there is something to read, because a read itself has no time limit. Raises TimeoutError."""
        there, deadline = c_uint32(), time.perf_counter() + seconds
        while True:
            if not _PeekNamedPipe(self.handle, None, 0, None, ctypes.addressof(there), None):
                raise _error("PeekNamedPipe")
            if there.value:
                return
            if time.perf_counter() >= deadline:
                raise TimeoutError(f"no answer within {seconds:g} s")
            time.sleep(_PAUSE_SECONDS)

    def close(self) -> None:
        """Closes this end; a second call does nothing."""
        if self.handle:
            winapi.CloseHandle(self.handle)
            self.handle = 0


class Server:
    """The listening end of a pipe, for one client at a time.

    Args:
        path: the name of the pipe, which must begin with PREFIX and be unused.

    Raises:
        OSError: the system refuses the pipe.
        Unavailable: the system does not say which user we are.
    """

    def __init__(self, path: str) -> None:
        path, descriptor = local(path), c_void_p()
        user = token.sid_text(token.user(winapi, winapi.GetCurrentProcess()))
        if not _SecurityDescriptor(f"D:P(A;;GA;;;{user})", _SDDL_REVISION, ctypes.addressof(descriptor), None):
            raise _error("ConvertStringSecurityDescriptorToSecurityDescriptorW")
        attributes = _SecurityAttributes(ctypes.sizeof(_SecurityAttributes), descriptor, 0)
        handle = _CreateNamedPipeW(
            path, _PIPE_ACCESS_DUPLEX | _FIRST_PIPE_INSTANCE, _REJECT_REMOTE_CLIENTS, 1, _CHUNK, _CHUNK, 0,
            ctypes.addressof(attributes),
        )  # fmt: skip
        refused = _error("CreateNamedPipeW")
        _LocalFree(descriptor)
        if handle in (None, 0, winapi.INVALID_HANDLE_VALUE):
            raise refused
        self._pipe = Pipe(int(handle))

    def accept(self) -> Pipe:
        """Waits for the next client and returns its end, until release(). Raises OSError: it has gone already."""
        if not _ConnectNamedPipe(self._pipe.handle, None) and winapi.GetLastError() != _ERROR_PIPE_CONNECTED:
            raise _error("ConnectNamedPipe")
        return self._pipe

    def release(self) -> None:
        """Disconnects the client."""
        _DisconnectNamedPipe(self._pipe.handle)

    def close(self) -> None:
        """Removes the pipe."""
        self._pipe.close()


def connect(path: str, seconds: float = SECONDS) -> Pipe:
    """Opens a pipe of this machine.

    Raises:
        OSError: there is no such pipe (winerror 2), access is refused (5), or it was busy for `seconds`.
    """
    path, deadline = local(path), time.perf_counter() + seconds
    while True:
        handle = _CreateFileW(path, _GENERIC_READ_WRITE, 0, None, _OPEN_EXISTING, _SQOS_PRESENT | _IDENTIFICATION, None)
        if handle not in (None, 0, winapi.INVALID_HANDLE_VALUE):
            return Pipe(int(handle))
        error = _error("CreateFileW")
        left = deadline - time.perf_counter()
        if getattr(error, "winerror", 0) != _ERROR_PIPE_BUSY or left <= 0:
            raise error
        _WaitNamedPipeW(path, int(left * 1000) + 1)


def local(path: str) -> str:
    """The path itself. Raises OSError unless it is a pipe of this machine, as another one would get our credentials."""
    if not path.lower().startswith(PREFIX) or "\\" in path[len(PREFIX) :]:
        raise OSError(f"{path} is no {PREFIX}NAME")
    return path


def _error(call: str) -> OSError:
    code = winapi.GetLastError()
    return OSError(0, f"{call}: {winapi.meaning(code)}", None, code)
