"""Programs written by hand that compile a function which calls the checkpoint, or checkpoint a compiled function.

Each computes what it expects eagerly, without the checkpoint, before anything is compiled. None notes its leaves, since it
resets their gradients between the two.
"""
