"""Programs that several ranks run together, each in the process group that is there, with ``torch.distributed`` alone."""
