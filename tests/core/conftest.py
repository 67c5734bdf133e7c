"""What tests of outputs share: a folder in another user's hands."""

import os

import pytest
from kit.another_user import CALLER


@pytest.fixture
def folder(open_folder):
    """A folder of another user's, which everybody can reach; needs root."""
    own = open_folder / "own"
    own.mkdir()
    os.chown(own, CALLER, CALLER)
    return own
