"""The commands, each a function: arguments in, an exit status out."""
