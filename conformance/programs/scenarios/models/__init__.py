"""Programs like those that people write: callables and modules of any kind, their hooks and weights, training, many steps."""
