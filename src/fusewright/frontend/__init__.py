"""A model file or a module becomes a `Problem` and a `Graph`; what was read from Python on the way is recorded, to be guarded."""
