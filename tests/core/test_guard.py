"""What a user sees of a plugin's error: what failed, why, and what to do about it."""

import errno
import os

import pytest

from wstrace.errors import PluginError, named, why


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "perf_event_open"), "allow more open files: ulimit -n"),
        (OSError(errno.ENFILE, os.strerror(errno.ENFILE)), "allow more open files: ulimit -n"),
        (MemoryError("Unable to allocate 384. KiB"), "allow more memory: ulimit -v, or the limit of the container"),
        (
            OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
            "allow more memory: ulimit -v, or the limit of the container",
        ),
        (ValueError("odd"), "WSTRACE_DEBUG=1 shows where"),
    ],
)
def test_a_limit_of_the_process_is_reported_with_what_lifts_it(error, remedy):
    with pytest.raises(PluginError) as shown, named("source x"):
        raise error
    assert shown.value.remedy == remedy
    assert shown.value.exit_code == (125 if isinstance(error, ValueError) else 122), "the system does not permit more"
    assert str(shown.value).startswith("source x failed: ")


def test_an_error_without_words_is_its_type():
    assert why(MemoryError()) == "MemoryError"
    assert why(ValueError("odd")) == "ValueError: odd"
