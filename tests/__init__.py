"""The test suite; `python -m tests` runs every check."""

import pytest

# Before anything in the folder is imported, so that its asserts explain themselves too.
pytest.register_assert_rewrite("tests.support")
