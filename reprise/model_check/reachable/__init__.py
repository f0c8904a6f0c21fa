"""What a function or a model reaches: other tensors and containers, and leaves that are no parameters."""
