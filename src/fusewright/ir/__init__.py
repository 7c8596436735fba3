"""What a model is while it is compiled. `expr.py`: what one element is computed by; `functions.py`: what such an expression may call."""
