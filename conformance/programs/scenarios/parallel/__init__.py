"""Programs that several ranks run together, each in the process group that is there: they need no more than ``torch.distributed``."""
