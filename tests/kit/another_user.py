"""A user who is neither root nor who runs the tests."""

#: Of no account: files and folders may belong to it, and root may become it.
CALLER = 54_321
