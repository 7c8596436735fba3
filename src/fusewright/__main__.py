"""`python -m fusewright` is the same command as `fusewright`."""

from .driver.cli import main

main()
