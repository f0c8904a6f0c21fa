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
    note('leaves', (p,))
    def forward(length, *arguments):
        def f(h, *others):
            for _ in range(length): h = h.sin()
            for other in others: h = h * other
            return h
        return checkpoint(f, p, *arguments)
    def backward(y, **options):
        p.grad = None
        y.sum().backward(**options)
    def step(number):
        y = forward(1)
        return [backward(y, retain_graph=True) for _ in range(number)]
        return [backward(forward(1)) for _ in range(number)]
    def calls(number):
        made = []
        def profile(frame, event, arg):
            if event == 'call' or event == 'c_call': made.append(1)
        def measured():
            sys.setprofile(profile)
            step(number)
            sys.setprofile(None)
        with ThreadPoolExecutor(1) as pool: pool.submit(measured).result()
        return len(made)
    calls(2)
    few, many, few_again = (calls(40), calls(160), calls(40))
    note('gradients 0', [p.grad])
    note('expected to grow in proportion', True)
    note('seen to grow in proportion', many < 6 * few)
    note('expected to take as many calls again', True); note('seen to take as many calls again', few_again < 1.2 * few)
try: run(checkpoint, lambda label, value=None: None, 'cpu')
except BaseException as error:
    print('expected no error; deepspeed-reentrant raised', repr(error)); sys.exit(1)
print('expected no error, and there is none')
