"""deepspeed-reentrant, law work_of_python_grows_in_proportion. Four times as many saved tensors, arguments, regions, passes
or steps take less than six times as many Python calls."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

from concurrent.futures import ThreadPoolExecutor

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def forward(length, *arguments):
        def f(h, *others):
            h = h.sin()
            return h
        return checkpoint(f, p, *arguments)
    def backward(y, **options):
        y.sum().backward(**options)
    def step(number):
        y = forward(1)
        return [backward(y, retain_graph=True) for _ in range(number)]
    def calls(number):
        def measured():
            step(number)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(measured).result()
    calls(2)

try: run(checkpoint, lambda label, value=None: None, 'cpu')
except BaseException as error:
    print('expected no error; deepspeed-reentrant raised', repr(error)); sys.exit(1)
print('expected no error, and there is none')
