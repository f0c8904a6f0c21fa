"""What the nested checkpoint adds to the work that it repeats, against PyTorch's."""
