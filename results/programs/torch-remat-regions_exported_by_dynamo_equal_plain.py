"""torch-remat, law regions_exported_by_dynamo_equal_plain. With strict=True, by which Dynamo traces the module, what is
exported gives plain's values and gradients, too."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    w = torch.randn(3, 3, device=device)
    inputs = [torch.randn(2, 3, device=device, requires_grad=True) for _ in range(2)]
    class Model(torch.nn.Module):
        def __init__(self, region):
            super().__init__()
            self.region, self.w = (region, torch.nn.Parameter(w))
        def f(self, h):
            h = (h @ self.w).sin()
        def forward(self, h):
            outer = self.f
            h = self.region(outer, h)
    program = torch.export.export(Model(checkpoint), (inputs[0],), strict=True).module()

try:
    run(checkpoint, lambda label, value=None: None, 'cpu')
except BaseException as error:
    print('expected no error; torch-remat raised', repr(error))
    sys.exit(1)
print('expected no error, and there is none')
