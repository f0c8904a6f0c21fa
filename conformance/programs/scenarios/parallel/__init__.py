"""Programs that several ranks run together in a process group that exists already, written with ``torch.distributed`` alone."""
