"""Algebra on graphs: laws, one function each, and the fixpoint that applies them; what is known of values."""
