"""The whole line and its front doors: the command, the Python calls, tuning, suites."""
