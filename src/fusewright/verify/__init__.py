"""Is a candidate right? A verdict made of named checks."""
