"""Programs in which an offloaded model is recomputed on one thread, and a checkpointed region on another."""

from __future__ import annotations

import torch

from conformance.programs.scenarios.offload.building_blocks import here


def beside(OffloadModel, note, device, place, *, other, first, seconds, slices):  # noqa: N803
    import threading

    import impls

    inside, done = ([threading.Event(), threading.Event()] for _ in range(2))
    failed, backward = [], []

    def function(index, h):
        h = torch.nn.functional.dropout(h.cos(), 0.3)
        if backward:  # the one that comes second lets the first draw next, if both can be inside at all
            inside[index].set()
            (done if inside[1 - index].is_set() else inside)[1 - index].wait(seconds)
        h = torch.nn.functional.dropout(h.sin(), 0.3)
        if backward:
            done[index].set()
        return h.exp()

    class Meeting(torch.nn.Module):
        def forward(self, x):
            return function(0, x)

    def there(index):
        try:
            outputs[index].backward(torch.ones_like(outputs[index]))
        except Exception as error:
            failed.append(error.with_traceback(None))
        inside[index].set()
        done[index].set()

    model = OffloadModel([torch.nn.Linear(4, 4), Meeting()], place, num_slices=slices, checkpoint_activation=True)
    leaf = torch.randn(4, 4, device=place, requires_grad=True)
    note("leaves", (*model.parameters(), leaf))
    outputs = [model(torch.randn(4, 4, device=place)), impls.get(other).checkpoint(lambda h: function(1, h), leaf * 1)]
    note("forward", here(outputs))
    backward.append(True)
    threads = {index: threading.Thread(target=there, args=(index,), daemon=True) for index in ((0, 1) if first else (1, 0))}
    for index, thread in threads.items():
        thread.start()
        inside[index].wait(10)  # the next begins while this one recomputes, or when it is over
    for thread in threads.values():
        thread.join()
    if failed:
        raise failed[0]
    note("gradients", here([*(p.grad for p in model.parameters()), leaf.grad]))
    note("stream after backward", torch.rand(2))
