"""What is kept of tensors that are dropped or saved: versions, attributes, packed forms, origins, and their containers."""
