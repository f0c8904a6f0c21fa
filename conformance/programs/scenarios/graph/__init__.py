"""Programs about saved-tensor hooks and graph tools, ``torch.autograd.graph``."""
