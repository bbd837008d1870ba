"""The mutation suite: damage to valid programs, and who notices; `python -m tests.mutation`."""
