"""The control program's tests."""
