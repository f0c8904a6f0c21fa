"""What tensors hold and how two of them differ, and which tensors an operator is given without reading them."""
