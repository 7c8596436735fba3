"""`python -m fusewright` is the same command as `fusewright`."""

from .cli import main

main()
