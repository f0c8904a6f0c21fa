"""What is done with a drawn model beside training it: hooks, errors, saving and loading, changes at the wrong time."""

from __future__ import annotations

import torch

from conformance.programs.scenarios.offload.building_blocks import here


def hooks_on_parameters(model, x, note, *, index, removed):
    wanted = [p for p in model.parameters() if p.requires_grad]
    seen = []
    handles = [wanted[index % len(wanted)].register_hook(lambda grad: grad * 2)]
    handles += [p.register_hook(lambda grad: seen.append(grad.detach().cpu())) for p in wanted]
    handles += [p.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.detach().cpu())) for p in wanted]
    model(x).square().sum().backward()
    note("gradients 0", here(p.grad for p in wanted))
    note("number of calls", len(seen))
    note("grad as hooks see it", sorted(seen, key=lambda grad: (grad.shape, grad.flatten().tolist())))
    if removed:
        for handle in handles:
            handle.remove()
    model(x).square().sum().backward()
    note("gradients 1", here(p.grad for p in wanted))


def hooks_on_modules(model, layers, x, note, *, index, kind):
    child = layers[index % len(layers)]
    def double(y):
        return torch.utils._pytree.tree_map(lambda t: t * 2 if isinstance(t, torch.Tensor) else t, y)

    if kind == "pre":
        child.register_forward_pre_hook(lambda module, args: double(args))
    elif kind == "forward":
        child.register_forward_hook(lambda module, args, y: double(y))
    else:
        child.register_full_backward_hook(lambda module, grads, of: tuple(g if g is None else g * 2 for g in grads))
    y = model(x)
    note("forward", here([y]))
    y.square().sum().backward()
    note("gradients", here(p.grad for p in model.parameters() if p.requires_grad))


def hooks_that_use_gradients(model, x, note, *, how):
    def use(module, grads, of):
        for name, p in module._parameters.items():
            if p is not None and p.requires_grad:
                seen.append((name, *here([p.grad])))
                if how == "steps" and p.grad is not None:
                    with torch.no_grad():
                        p -= p.grad

    order, seen = [], []
    for name, p in model.named_parameters():
        if p.requires_grad:
            p.register_hook(lambda grad, name=name: order.append(name))
    for module in model.modules():
        if module is not model:
            module.register_full_backward_hook(use)
    y = model(x.requires_grad_())  # else the first module's hook would run before its gradients are computed
    ones = torch.ones_like(y)
    for p in model.parameters():
        if how == "asks" and p.requires_grad:
            p.register_hook(lambda grad: seen.append(torch.autograd.grad(y, x, ones, retain_graph=True)))
    y.backward(ones, retain_graph=how == "asks")
    note("order of hooks", order)
    note("seen in hooks", seen)
    note("gradients", here(p.grad for p in model.parameters() if p.requires_grad))
    note("parameters", here(model.parameters()))


def hooks_around(model, x, note, *, kind):
    copies = torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t)
    same = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)
    around = {"save_on_cpu": torch.autograd.graph.save_on_cpu(), "copies": copies, "same": same}[kind]
    with around:
        y = model(x)
    note("forward", here([y]))
    y.square().sum().backward()
    note("gradients", here(p.grad for p in model.parameters() if p.requires_grad))


def region_around(model, x, note, *, name, passes):
    import impls

    x.requires_grad_()
    y = impls.get(name).checkpoint(lambda h: model(h.sin()).cos(), x)
    note("forward", here([y]))
    for turn in range(passes):
        y.sum().backward(retain_graph=turn < passes - 1)
        note(f"gradients {turn}", here(p.grad for p in model.parameters() if p.requires_grad))
    note("random numbers", torch.rand(2))


def interrupted(model, layers, x, place, note, *, index, where, error):
    raised = {"ValueError": ValueError, "KeyboardInterrupt": KeyboardInterrupt}[error]
    child = layers[index % len(layers)]
    wanted = [p for p in model.parameters() if p.requires_grad]
    armed = []

    def fail(*_):
        if armed:
            raise armed.pop()("the program's")

    state = {"forward": child.register_forward_hook, "again": child.register_forward_pre_hook}.get(where)
    handle = state(fail) if state else wanted[index % len(wanted)].register_hook(fail)
    if where == "forward":
        armed.append(raised)
    try:
        y = model(x).square().sum()
        armed[:] = [] if where == "forward" else [raised]
        y.backward()
        note("cost of going through", where)
    except raised as came:
        note("cost of an error", str(came))
    armed.clear()
    handle.remove()
    model.zero_grad()
    note("modes", [torch.is_grad_enabled(), torch.is_inference_mode_enabled()])
    note("hooks for saved tensors", torch._C._autograd._top_saved_tensors_default_hooks(True) is None)
    torch.manual_seed(7)
    model(x).square().sum().backward()
    note("gradients", here(p.grad for p in wanted))
    note("random numbers", here([torch.rand(2), torch.rand(2, device=place)]))


def two_models(model, build, batch, note, *, order):
    models = [model, build()]
    pending = [[], []]
    for turn, index in enumerate(order):
        if turn % 2 and pending[index]:
            pending[index].pop(0).square().sum().backward()
        else:
            pending[index].append(models[index](batch()))
    for outputs in pending:
        for y in outputs:
            y.square().sum().backward()
    note("gradients", here(p.grad for p in model.parameters() if p.requires_grad))
    note("grad of the other", here(p.grad for p in models[1].parameters() if p.requires_grad))


def two_threads(model, build, batch, note, *, shared, rounds):
    import threading

    models = [model, model if shared else build()]
    wanted = [[p for p in one.parameters() if p.requires_grad] for one in models]
    inputs = [batch(), batch()]
    barrier = threading.Barrier(2)
    found, errors = {}, []

    def work(index):
        try:
            for turn in range(rounds):
                barrier.wait(10)
                y = models[index](inputs[index]).square().sum()
                barrier.wait(10)
                found[index, turn] = here(torch.autograd.grad(y, wanted[index]))
        except Exception as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    note("grad", [found[index, turn] for index in range(2) for turn in range(rounds)])
    note("parameters", [isinstance(p, torch.nn.Parameter) and p.is_leaf for p in model.parameters()])


def saved_and_loaded(model, build, batch, note, *, through, steps):
    import copy
    import io
    import pickle

    def loop(model, stepping):
        for _ in range(steps):
            stepping.zero_grad()
            model(batch()).square().sum().backward()
            stepping.step()

    stepping = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loop(model, stepping)
    if through == "deepcopy":
        other, state = copy.deepcopy(model), stepping.state_dict()
    elif through == "pickle":
        other, state = pickle.loads(pickle.dumps(model)), stepping.state_dict()
    else:
        other, file = build(), io.BytesIO()
        torch.save([model.state_dict(), stepping.state_dict()], file)
        file.seek(0)
        values, state = torch.load(file)
        note("keys", list(values))
        note("loaded", [str(other.load_state_dict(values, assign=through == "assign")), *here(other.state_dict().values())])
    again = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    again.load_state_dict(state)
    loop(other, again)
    note("gradients", here(p.grad for p in model.parameters() if p.requires_grad))
    note("grad of the other", here(p.grad for p in other.parameters() if p.requires_grad))
    note("state", here([*model.state_dict().values(), *other.state_dict().values()]))


def names_and_flags(model, layers, x, note, *, training):
    note("parameters", [name for name, _ in model.named_parameters()])
    note("buffers", [name for name, _ in model.named_buffers()])
    note("state", list(model.state_dict()))
    model.train(training)
    note("flags", [layer.training for layer in layers])
    model.requires_grad_(False)
    note("frozen", [p.requires_grad for p in model.parameters()])
    note("forward", [model(x).requires_grad])
    model.requires_grad_(True)
    model(x).square().sum().backward()
    note("gradients 0", here(p.grad for p in model.parameters()))
    model.zero_grad(set_to_none=False)
    note("gradients 1", here(p.grad for p in model.parameters()))
    model.zero_grad()
    note("gradients 2", here(p.grad for p in model.parameters()))
    model.apply(lambda module: module.reset_parameters() if isinstance(module, torch.nn.Linear) else None)
    model(x).square().sum().backward()
    note("gradients 3", here(p.grad for p in model.parameters()))
    model.zero_grad()
    model.double()
    model(x.double()).square().sum().backward()
    note("gradients 4", here(p.grad for p in model.parameters()))


def changed_between(model, x, note, *, index, how):
    wanted = [p for p in model.parameters() if p.requires_grad]
    one = wanted[index % len(wanted)]
    if how == "another row":
        rows = torch.stack([one.detach(), one.detach() * 0.5])
        one.data = rows[0]
    y = model(x).square().sum()
    with torch.no_grad():
        if how == "loading":
            model.load_state_dict({key: value * 0.5 for key, value in model.state_dict().items()})
        elif how == "stepping":
            one.grad = torch.ones_like(one)
            torch.optim.SGD([one], lr=0.1).step()
            one.grad = None
        elif how == "other data":
            one.data = one.data * 0.5
        elif how == "another row":
            one.data = rows[1]
        else:
            one.mul_(0.5)
    y.backward()
    note("gradients 0", here(p.grad for p in wanted))


def flag_between(model, x, note, *, index, frozen):
    parameters = list(model.parameters())
    one = parameters[index % len(parameters)]
    one.requires_grad_(frozen)
    y = model(x).square().sum()
    note("requires grad", y.requires_grad)
    one.requires_grad_(not frozen)
    if y.requires_grad:
        y.backward()
    note("gradients", here(p.grad for p in parameters if p.requires_grad))
    note("grad of that one", here([one.grad]))


def changed_output(model, x, note):
    y = model(x)
    y.mul_(0.5)
    note("forward", here([y]))
    y.square().sum().backward()
    note("gradients 0", here(p.grad for p in model.parameters() if p.requires_grad))


def changed_input(model, x, note, *, how):
    expected = here([model(x)])
    model(x).square().sum().backward()
    wanted = [p for p in model.parameters() if p.requires_grad]
    first = [p.grad for p in wanted]
    note("expected gradients", here(first))
    model.zero_grad()
    y = model(x)
    note("expected forward", expected)
    note("seen forward", here([y]))
    with torch.no_grad():
        x.mul_(0.5) if how == "scaled" else x.copy_(torch.randn_like(x))
    word = "inplace"
    try:
        y.square().sum().backward()
    except RuntimeError as error:  # then gradients that are there are right, and the others are missing
        word = str(error)
        for p, grad in zip(wanted, first, strict=True):
            p.grad = grad if p.grad is None else p.grad
    note("seen gradients", here(p.grad for p in wanted))
    note("expected word", True)
    note("seen word", "inplace" in word or "in place" in word)


def closer(model, batch, note, *, steps):
    for step in range(steps):
        y = model(batch())
        note(f"forward {step}", here([y]))
        note(f"shape {step}", list(y.shape))
        y.square().mean().backward()
        note(f"gradients {step}", here(p.grad for p in model.parameters() if p.requires_grad))
