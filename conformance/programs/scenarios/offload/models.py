"""Programs about particular models; ``place`` is where the model computes."""

from __future__ import annotations

import torch

from conformance.programs.scenarios.offload.building_blocks import Mixing, Scale, chain, here, note_gradients


def many_inputs(OffloadModel, note, device, place, *, others, keyword, table, microbatches, grad, home):  # noqa: N803
    import copy

    layers = [Mixing(3), torch.nn.Linear(3, 2)]
    first, *rest = copy.deepcopy(torch.nn.ModuleList(layers)).to(place)
    options = {"checkpoint_activation": microbatches > 0, "num_microbatches": max(1, microbatches)}
    model = OffloadModel(layers, place, num_slices=2, **options)
    at = "cpu" if home else place
    tensors = [torch.randn(4, 3, device=at).requires_grad_(grad)]
    with torch.inference_mode():
        inference = torch.randn(4, 3, device=at)
    for kind in others:
        made = {"float": torch.randn(4, 3, device=at).requires_grad_(grad), "number": 0.5, "same": tensors[0]}
        tensors.append((made | {"inference": inference}).get(kind, torch.randint(5, (4, 3), device=at)))
    keywords = {"scale": torch.randn(4, 1, device=at).requires_grad_(grad)} if keyword else {}
    if table:
        keywords["table"] = [{"value": torch.randn(4, 3, device=at).requires_grad_(grad), "name": "text"}]
    given = [t for t in torch.utils._pytree.tree_leaves((tensors, keywords)) if isinstance(t, torch.Tensor) and t.requires_grad]
    moved = torch.utils._pytree.tree_map(lambda t: t.to(place) if isinstance(t, torch.Tensor) else t, (tensors, keywords))
    y = torch.nn.Sequential(*rest)(first(*moved[0], **moved[1]))
    y.sum().backward()
    note("expected forward", here([y]))
    note("expected gradients of inputs", here(t.grad for t in given))
    for tensor in given:
        tensor.grad = None
    z = model(*tensors, **keywords)
    z.sum().backward()
    note("seen forward", here([z]))
    note("seen gradients of inputs", here(t.grad for t in given))
    note("expected gradients", here(p.grad for layer in (first, *rest) for p in layer.parameters()))
    note("seen gradients", here(p.grad for layer in layers for p in layer.parameters()))


def outputs(OffloadModel, note, device, place, *, kind, microbatches, checkpoint):  # noqa: N803
    from collections import namedtuple

    pair = namedtuple("pair", "one two")
    make = {
        "tuple": lambda x: (x * 2, x.detach()),
        "list": lambda x: [x.sin()],
        "dict": lambda x: {"a": x.sin(), "b": None, "c": (x.cos() > 0, 7)},
        "namedtuple": lambda x: pair(x.sin(), "text"),
        "the same twice": lambda x: (x, x),
        "a view": lambda x: x.unsqueeze(-1),
        "nothing but numbers": lambda x: (x.sin(), x.shape[1] / 2, None, x.device),
        "one column": lambda x: x[:, :1],
    }

    class Last(torch.nn.Module):
        def forward(self, x):
            return make[kind](x)

    layers = [torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3), Last()]
    options = {"checkpoint_activation": checkpoint or microbatches > 1, "num_microbatches": microbatches}
    model = OffloadModel(layers, place, num_slices=3, **options)
    note("leaves", tuple(model.parameters()))
    y = model(torch.randn(5, 3, device=place))
    leaves = [t for t in torch.utils._pytree.tree_leaves(y) if isinstance(t, torch.Tensor)]
    note("container", torch.utils._pytree.tree_map(lambda t: t.detach().cpu() if isinstance(t, torch.Tensor) else t, y))
    note("requires grad", [t.requires_grad for t in leaves])
    note("shapes", [list(t.shape) for t in leaves])
    note("one object", leaves[0] is leaves[-1])
    grad = [t for t in leaves if t.requires_grad]
    torch.autograd.backward(grad, [torch.ones_like(t) for t in grad])
    note_gradients(note, model)


def repeated(OffloadModel, note, device, place, *, kind, first, microbatches, slices):  # noqa: N803
    class Paired(torch.nn.Module):
        def forward(self, x):
            box = {"list": [x], "dict": {0: x}, "tensor": x}[kind]
            return box, (box,)

    class Changing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.wider = torch.nn.Linear(2, 4)

        def forward(self, pair):
            one, (other,) = pair
            if kind == "tensor":
                one.mul_(2)
                return self.wider(other).sin()
            one[0] = self.wider(one[0])
            return other[0].sin()

    layers = [Changing(), torch.nn.Linear(4, 2)] if first else [torch.nn.Linear(2, 2), Paired(), Changing()]
    parts = 1 if first and kind == "tensor" else max(1, microbatches)  # parts of one input do not change in place
    options = {"checkpoint_activation": microbatches > 0, "num_microbatches": parts}
    model = OffloadModel(layers, place, num_slices=slices, **options)
    note("leaves", tuple(model.parameters()))
    x = torch.randn(4, 2, device=place)
    y = model(Paired()(x)) if first else model(x)
    note("forward", here([y]))
    y.sum().backward()
    note_gradients(note, model)


def packed(OffloadModel, note, device, place, *, lengths, slices, checkpoint):  # noqa: N803
    from torch.nn.utils.rnn import pack_sequence

    class Recurrent(torch.nn.RNN):
        def forward(self, sequence):
            return super().forward(sequence)[0]

    model = OffloadModel([Recurrent(2, 2), Recurrent(2, 2)], place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    given = pack_sequence([torch.randn(length, 2) for length in lengths], enforce_sorted=False).to(place)
    y = model(given)
    note("forward", here([y.data, y.batch_sizes, y.sorted_indices]))
    y.data.sum().backward()
    note("gradients", here(p.grad for p in model.parameters()))


def handed_on(OffloadModel, note, device, place, *, kind, microbatches, modules, slices):  # noqa: N803
    class Marked(torch.Tensor):
        pass

    class Reading(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([0.9, 1.1]))

        def forward(self, given):
            x, size = given
            scale = getattr(x, "scale", 1.0) * size.numel() * (2 if type(x) is Marked else 1)
            scale *= 1.5 if x.is_leaf and microbatches < 2 else 1
            y = x.as_subclass(torch.Tensor) * self.weight**scale
            y = y.as_subclass(Marked) if kind == "a subclass" else y
            y.scale = 2.0
            return y, torch.Size([*size])

    layers = [Reading() for _ in range(modules)]
    options = {"checkpoint_activation": microbatches > 0, "num_microbatches": max(1, microbatches)}
    model = OffloadModel(layers, place, num_slices=min(slices, modules), **options)
    note("leaves", tuple(model.parameters()))
    x = torch.randn(4, 2, device=place, requires_grad=kind == "a leaf")
    x = x.as_subclass(Marked) if kind == "a subclass" else torch.nn.Parameter(x) if kind == "a parameter" else x
    if microbatches < 2:
        x.scale = 3.0
    y, size = model((x, torch.Size([2, 3])))
    y = y.as_subclass(torch.Tensor)
    note("kind of the size", type(size).__name__)
    note("forward", here([y]))
    y.sum().backward()
    note_gradients(note, model)


def parts(OffloadModel, note, device, place, *, rows, widths, slices, steps):  # noqa: N803
    import copy

    layers = chain(widths)[:-1]
    plain = torch.nn.Sequential(*copy.deepcopy(layers)).to(place)
    model = OffloadModel(layers, place, num_slices=min(slices, len(layers)), checkpoint_activation=True, num_microbatches=2)
    for step in range(steps):
        x = torch.randn(rows, widths[0], device=place)
        for label, apply in (
            ("expected", lambda x: torch.cat([plain(part) for part in torch.tensor_split(x, 2)])),
            ("seen", model),
        ):
            one = x.clone().requires_grad_()
            y = apply(one)
            y.square().sum().backward()
            of = plain if label == "expected" else model
            note(f"{label} forward {step}", here([y]))
            note(f"{label} gradients {step}", here([one.grad, *[p.grad for p in of.parameters()]]))


def masks(OffloadModel, note, device, place, *, rows, slices, microbatches, layers, again):  # noqa: N803
    made = [module for _ in range(layers) for module in (Scale(), torch.nn.Dropout(0.5))]
    options = {"checkpoint_activation": True, "num_microbatches": min(microbatches, rows)}
    model = OffloadModel(made, place, num_slices=min(slices, len(made)), **options)
    x = torch.ones(rows, 16, device=place, requires_grad=True)
    y, z = model(x), model(x) if again else None
    torch.rand(7)
    y.sum().backward(retain_graph=True)
    note("seen mask", here([x.grad]))
    note("expected mask", here([y]))
    torch.manual_seed(0)
    x.grad = None
    y.sum().backward()
    note("seen mask again", here([x.grad]))
    note("expected mask again", here([y]))
    if again:
        x.grad = None
        z.sum().backward()
        note("seen mask of the other", here([x.grad]))
        note("expected mask of the other", here([z]))
    note("expected that some are dropped", True)
    note("seen that some are dropped", bool((y == 0).any().cpu()))
    note("expected masks that differ", rows > 1)
    note("seen masks that differ", any(not torch.equal(y[0], row) for row in y[1:]))


def shared(OffloadModel, note, device, place, *, distance, slices, checkpoint, steps):  # noqa: N803
    layers = [torch.nn.Linear(3, 3) for _ in range(4)]
    layers[distance].weight = layers[0].weight
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    stepping = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    note("leaves", tuple(model.parameters()))
    note("number of parameters", len(list(model.parameters())))
    for step in range(steps):
        stepping.zero_grad()
        model(torch.randn(2, 3, device=place)).square().sum().backward()
        note(f"gradients {step}", here(p.grad for p in model.parameters()))
        stepping.step()
    note("state", here(model.state_dict().values()))


def twice(OffloadModel, note, device, place, *, checkpoint, steps):  # noqa: N803
    one = torch.nn.Linear(3, 3)
    layers = [one, torch.nn.Tanh(), one, torch.nn.Sequential(one, torch.nn.Dropout(0.5))]
    model = OffloadModel(layers, place, num_slices=1, checkpoint_activation=checkpoint)
    stepping = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    note("leaves", tuple(model.parameters()))
    note("names", [name for name, _ in model.named_parameters()])
    for step in range(steps):
        stepping.zero_grad()
        model(torch.randn(2, 3, device=place)).sum().backward()
        note(f"gradients {step}", here(p.grad for p in model.parameters()))
        stepping.step()


def sparse(OffloadModel, note, device, place, *, slices, checkpoint, steps):  # noqa: N803
    layers = [torch.nn.Embedding(7, 3, sparse=True), torch.nn.Linear(3, 3), torch.nn.Tanh()]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    stepping = torch.optim.SGD(model.parameters(), lr=0.1)
    note("leaves", tuple(model.parameters()))
    for step in range(steps):
        stepping.zero_grad()
        model(torch.randint(7, (4,), device=place)).square().sum().backward()
        note(f"layout {step}", [str(p.grad.layout) for p in model.parameters()])
        note(f"gradients {step}", here(p.grad.to_dense() for p in model.parameters()))
        stepping.step()
    note("state", here(model.state_dict().values()))


def transposed(OffloadModel, note, device, place, *, kind, dims, axis, slices, checkpoint):  # noqa: N803
    attention = {"dropout": 0.0, "batch_first": True}
    layers = {
        "linear": lambda: [torch.nn.Linear(4, 4), torch.nn.SiLU()],
        "scaled": lambda: [Mixing(4), torch.nn.Linear(4, 4), torch.nn.Sigmoid()],
        "encoder": lambda: [torch.nn.TransformerEncoderLayer(4, 2, 8, **attention), torch.nn.Tanh()],
    }[kind]()
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    p = torch.randn(*([4, 3, 2][:dims]), device=place).movedim(0, axis).contiguous().requires_grad_()
    note("leaves", (p, *model.parameters()))
    y = model((p * 1).movedim(axis, -1))
    y.square().sum().backward()
    note("forward", here([y]))
    note("gradients", here([p.grad, *(one.grad for one in model.parameters())]))


def changed_in_place(OffloadModel, note, device, place, *, before, slices, checkpoint, first, home):  # noqa: N803
    layers = [torch.nn.Linear(3, 3) for _ in range(before)]
    layers[len(layers) if not first else 0 : 0] = [torch.nn.ReLU(inplace=True)]
    layers += [torch.nn.Linear(3, 3), torch.nn.Hardtanh(-0.4, 0.4, inplace=True), torch.nn.Linear(3, 2)]
    options = {"num_slices": min(slices, len(layers)), "checkpoint_activation": checkpoint}
    model = OffloadModel(layers, place, offload_device=torch.device(place).type if home else "cpu", **options)
    note("leaves", tuple(model.parameters()))
    x = torch.randn(4, 3, device=place)
    y = model(x)
    note("forward", here([y, x]))
    y.sum().backward()
    note("gradients", here(p.grad for p in model.parameters()))


def inside(OffloadModel, note, device, place, *, name, blocks, checkpoint, slices):  # noqa: N803
    import impls

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one = torch.nn.Linear(3, 3)
            self.two = torch.nn.Linear(3, 3)
            self.region = impls.get(name).checkpoint

        def forward(self, x):
            return self.region(lambda h: self.two(self.one(h).sin()).cos(), x) + x

    layers = [Block() for _ in range(blocks)]
    model = OffloadModel(layers, place, num_slices=min(slices, blocks), checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    y = model(torch.randn(4, 3, device=place, requires_grad=True))
    note("forward", here([y]))
    y.sum().backward()
    note("gradients", here(p.grad for p in model.parameters()))


def attention(OffloadModel, note, device, place, *, more, checkpoint, slices, masked):  # noqa: N803
    class Attending(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.LayerNorm(4)
            self.attend = torch.nn.MultiheadAttention(4, 2, dropout=0.25)

        def forward(self, x):
            h = self.norm(x)
            size = x.shape[0]
            mask = torch.ones(size, size, dtype=torch.bool, device=x.device).triu(1) if masked else None
            return x + self.attend(h, h, h, need_weights=False, attn_mask=mask)[0]

    layers = [torch.nn.Embedding(4, 4), Attending()]
    for _ in range(more):
        layers += [torch.nn.Linear(4, 4), Attending()]
    model = OffloadModel(layers, place, num_slices=min(slices, len(layers)), checkpoint_activation=checkpoint)
    stepping = torch.optim.Adam(model.parameters(), lr=0.1)
    note("leaves", tuple(model.parameters()))
    for step in range(2):
        x = torch.randint(4, (3, 2), device=place)
        loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
        stepping.zero_grad()
        loss.backward()
        note(f"gradients {step}", here(p.grad for p in model.parameters()))
        stepping.step()
    note("state", here(model.state_dict().values()))


def higher_order(OffloadModel, note, device, place, *, slices, checkpoint):  # noqa: N803
    from torch._higher_order_ops.out_dtype import out_dtype

    class Quantised(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.tensor([[1, 2], [3, -1]], dtype=torch.int8))

        def forward(self, x):
            whole = (x.detach() * 10).to(torch.int8)
            return x * out_dtype(torch.ops.aten.mm.default, torch.int32, whole, self.table).to(x.dtype)

    layers = [torch.nn.Linear(2, 2), Quantised(), torch.nn.Linear(2, 2)]
    model = OffloadModel(layers, place, num_slices=slices, checkpoint_activation=checkpoint)
    for step in range(2):
        model(torch.randn(3, 2, device=place)).sum().backward()
        note(f"gradients {step}", here(p.grad for p in model.parameters()))
