"""Our checkpoints inside of what ``torch.compile`` compiles: traced without a break, and right to the last bit, or refused."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo import config as dynamo
from torch._dynamo.utils import counters
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from impls import legacy, native, nested, reentrant

Checkpoint = Callable[..., Any]
OURS: dict[str, Checkpoint] = {"nested": nested.checkpoint, "reentrant": reentrant.checkpoint, "native": native.checkpoint}
EXACT = ("eager", "aot_eager")
ours = pytest.mark.parametrize("checkpoint", OURS.values(), ids=OURS)
exact = pytest.mark.parametrize("backend", EXACT)


@pytest.fixture(autouse=True)
def _nothing_is_compiled() -> Iterator[None]:
    torch.compiler.reset()
    torch.manual_seed(0)
    yield
    torch.compiler.reset()


class Blocks:
    """Three blocks with a weight each, and an input."""

    def __init__(self, rows: int = 4) -> None:
        self.weights = [torch.randn(8, 8, requires_grad=True) for _ in range(3)]
        self.input = torch.randn(rows, 8, requires_grad=True)

    def block(self, w: Tensor, h: Tensor) -> Tensor:
        return (h @ w).sin().relu() * h

    def forward(self, checkpoint: Checkpoint, x: Tensor, block: Checkpoint | None = None) -> Tensor:
        for w in self.weights:
            x = checkpoint(block or self.block, w, x)
        return x

    def gradients(self, run: Callable[[], Tensor]) -> list[Tensor]:
        """The value, and the gradients of all leaves."""
        y = run()
        y.backward(torch.ones_like(y))
        leaves = [*self.weights, self.input]
        found = [y.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]
        for leaf in leaves:
            leaf.grad = None
        assert len(found) == 1 + len(leaves)
        return found


def plain(function: Checkpoint, *args: Any) -> Any:
    return function(*args)


def assert_equal(one: list[Tensor], other: list[Tensor]) -> None:
    assert len(one) == len(other)
    assert all(map(torch.equal, one, other))


@ours
@exact
def test_three_blocks_in_one_graph_give_plains_gradients(checkpoint: Checkpoint, backend: str) -> None:
    blocks = Blocks()
    due = blocks.gradients(lambda: blocks.forward(plain, blocks.input))
    step = torch.compile(lambda x: blocks.forward(checkpoint, x), backend=backend, fullgraph=True)
    for _ in range(2):
        assert_equal(blocks.gradients(lambda: step(blocks.input)), due)


@ours
def test_a_traced_region_saves_what_it_is_passed(checkpoint: Checkpoint) -> None:
    blocks = Blocks()
    step = torch.compile(lambda x: blocks.forward(checkpoint, x), backend="aot_eager", fullgraph=True)
    node: Any = step(blocks.input).grad_fn
    leaves = {leaf.data_ptr() for leaf in (*blocks.weights, blocks.input)}
    assert len({saved.data_ptr() for saved in node.saved_tensors} - leaves) == len(blocks.weights) - 1


@ours
def test_masks_are_replayed_and_the_stream_is_plains(checkpoint: Checkpoint) -> None:
    blocks = Blocks()

    def dropped(w: Tensor, h: Tensor) -> Tensor:
        return torch.nn.functional.dropout(blocks.block(w, h), 0.5)

    def seeded(run: Callable[[], Tensor]) -> list[Tensor]:
        torch.manual_seed(1)
        return [*blocks.gradients(run), torch.rand(2)]

    due = seeded(lambda: blocks.forward(plain, blocks.input, dropped))
    step = torch.compile(lambda x: blocks.forward(checkpoint, x, dropped), backend="aot_eager", fullgraph=True)
    assert_equal(seeded(lambda: step(blocks.input)), due)


REFUSED: list[dict[str, Any]] = [
    {"preserve_rng_state": False},
    {"debug": True},
    {"early_stop": False},
    {"respect_saved_tensors_hooks": False},
]


@pytest.mark.parametrize("options", REFUSED, ids=lambda options: next(iter(options)))
@ours
def test_an_option_that_a_graph_cannot_keep_is_refused_by_name(checkpoint: Checkpoint, options: dict[str, Any]) -> None:
    (name,) = options
    blocks = Blocks()
    region = functools.partial(checkpoint, **options)
    step = torch.compile(lambda x: blocks.forward(region, x), backend="aot_eager", fullgraph=True)
    told = rf"keyword arguments \['{name}'\] are not" if checkpoint is reentrant.checkpoint else f"{name} is"
    with pytest.raises(Exception, match=f"{name} is" if name == "preserve_rng_state" else told):
        step(blocks.input)


@pytest.mark.parametrize(
    ("checkpoint", "options"),
    [
        *((one, options) for one in (nested.checkpoint, native.checkpoint) for options in REFUSED),
        (reentrant.checkpoint, REFUSED[0]),
    ],
)
def test_without_fullgraph_a_call_with_such_an_option_runs_eagerly(checkpoint: Checkpoint, options: dict[str, Any]) -> None:
    blocks = Blocks()
    due = blocks.gradients(lambda: blocks.forward(plain, blocks.input))
    seen: list[bool] = []

    def block(w: Tensor, h: Tensor) -> Tensor:
        seen.append(torch.compiler.is_compiling())
        return blocks.block(w, h)

    region = functools.partial(checkpoint, **options)
    step = torch.compile(lambda x: blocks.forward(region, x, block), backend="aot_eager")
    assert_equal(blocks.gradients(lambda: step(blocks.input)), due)
    assert seen == [False] * 6


@ours
def test_a_call_while_another_thread_compiles_is_not_traced(checkpoint: Checkpoint) -> None:
    inside, over = threading.Event(), threading.Event()

    def backend(graph: Callable[..., Any], inputs: Any) -> Callable[..., Any]:
        inside.set()
        over.wait(300)
        return graph

    thread = threading.Thread(target=lambda: torch.compile(torch.sin, backend=backend)(torch.ones(3)))
    thread.start()
    try:
        assert inside.wait(300)
        x = torch.ones(3, requires_grad=True)
        y = checkpoint(lambda x: x.sin().exp(), x, preserve_rng_state=False)  # which a graph cannot keep
    finally:
        over.set()
        thread.join()
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, x.detach().cos() * x.detach().sin().exp())


@exact
@pytest.mark.parametrize("which", [(0, 1), (0,), (1,)], ids=["both", "forward", "recomputation"])
@pytest.mark.parametrize("checkpoint", [nested.checkpoint, native.checkpoint], ids=["nested", "native"])
def test_contexts_that_are_no_policy_are_refused(checkpoint: Checkpoint, backend: str, which: tuple[int, ...]) -> None:
    blocks = Blocks()

    def contexts() -> tuple[Any, ...]:
        policy = create_selective_checkpoint_contexts([torch.ops.aten.mm.default])
        return tuple(nullcontext() if place in which else context for place, context in enumerate(policy))

    region = functools.partial(checkpoint, context_fn=contexts)
    step = torch.compile(lambda x: blocks.forward(region, x), backend=backend, fullgraph=True)
    with pytest.raises(Exception, match=r"context_fn gives .* no selective policy"):
        step(blocks.input)


class Exported(torch.nn.Module):
    """A module with a region inside of another."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self.weight, self.checkpoint = torch.nn.Parameter(torch.ones(3)), checkpoint

    def forward(self, x: Tensor) -> Any:
        return self.checkpoint(lambda h: self.checkpoint(torch.sin, h * self.weight).exp(), x)


@ours
@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_region_has_gradients(checkpoint: Checkpoint, strict: bool) -> None:
    x = torch.randn(3)
    program: Any = torch.export.export(Exported(checkpoint), (x,), strict=strict).module()
    due = Exported(plain)
    for one in (due, program):
        one(x).sum().backward()
    assert due.weight.grad is not None
    assert torch.equal(program.weight.grad, due.weight.grad)


@pytest.mark.parametrize(("strict", "told"), [(False, "gives .* no selective policy"), (True, "is given; .*strict=True")])
def test_contexts_are_refused_in_an_export(strict: bool, told: str) -> None:
    region = functools.partial(nested.checkpoint, context_fn=lambda: (nullcontext(), torch.no_grad()))
    with pytest.raises(Exception, match=f"context_fn {told}"):
        torch.export.export(Exported(region), (torch.randn(3),), strict=strict)


def test_a_policy_changes_nothing_in_an_export() -> None:
    policy = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.sin.default])
    region, x = functools.partial(nested.checkpoint, context_fn=policy), torch.randn(3)
    program: Any = torch.export.export(Exported(region), (x,), strict=False).module()
    assert torch.equal(program(x), x.sin().exp())
    assert program(x).requires_grad


@pytest.mark.parametrize(
    "options",
    [
        {"determinism_check": "none"},
        {"use_reentrant": False},
        {"context_fn": nested.noop_context_fn},
        {"context_fn": functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])},
    ],
    ids=["determinism_check", "use_reentrant", "noop", "policy"],
)
def test_other_options_are_kept(options: dict[str, Any]) -> None:
    blocks = Blocks()
    due = blocks.gradients(lambda: blocks.forward(plain, blocks.input))
    region = functools.partial(nested.checkpoint, **options)
    step = torch.compile(lambda x: blocks.forward(region, x), backend="aot_eager", fullgraph=True)
    assert_equal(blocks.gradients(lambda: step(blocks.input)), due)


@pytest.mark.parametrize("module", [nested, native])
def test_early_stop_that_is_switched_around_is_seen(module: Any) -> None:
    blocks = Blocks()
    step = torch.compile(lambda x: blocks.forward(module.checkpoint, x), backend="aot_eager", fullgraph=True)
    due = blocks.gradients(lambda: step(blocks.input))
    with module.set_checkpoint_early_stop(False), pytest.raises(Exception, match="set_checkpoint_early_stop is active"):
        step(blocks.input)
    assert_equal(blocks.gradients(lambda: step(blocks.input)), due)


def test_what_a_graph_does_anyway_may_be_switched_on_around() -> None:
    blocks = Blocks()
    step = torch.compile(lambda x: blocks.forward(nested.checkpoint, x), backend="aot_eager", fullgraph=True)
    due = blocks.gradients(lambda: blocks.forward(plain, blocks.input))
    with nested.set_checkpoint_early_stop(True), nested.set_checkpoint_debug_enabled(False):
        assert_equal(blocks.gradients(lambda: step(blocks.input)), due)
        with nested.set_checkpoint_debug_enabled(True), pytest.raises(Exception, match="debug_enabled is active"):
            step(blocks.input)
    assert_equal(blocks.gradients(lambda: step(blocks.input)), due)


def test_legacy_is_refused_in_a_graph_and_right_outside() -> None:
    blocks = Blocks()
    due = blocks.gradients(lambda: blocks.forward(plain, blocks.input))
    step = torch.compile(lambda x: blocks.forward(legacy.checkpoint, x), backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match=r"legacy runs a backward of its own, which torch.compile does not trace"):
        step(blocks.input)
    step = torch.compile(lambda x: blocks.forward(legacy.checkpoint, x), backend="aot_eager")
    assert_equal(blocks.gradients(lambda: step(blocks.input)), due)


@pytest.mark.parametrize("backend", EXACT)
@pytest.mark.parametrize("checkpoint", [reentrant.checkpoint, legacy.checkpoint], ids=["reentrant", "legacy"])
def test_compiled_autograd_leaves_the_backward_of_an_eager_region_alone(checkpoint: Checkpoint, backend: str) -> None:
    blocks = Blocks()
    due = blocks.gradients(lambda: blocks.forward(plain, blocks.input))
    traced: list[bool] = []

    def block(w: Tensor, h: Tensor) -> Tensor:
        traced.append(torch.compiler.is_dynamo_compiling())
        return blocks.block(w, h)

    def backward(y: Tensor) -> None:
        y.backward(torch.ones_like(y))

    counters.clear()
    with dynamo.patch(compiled_autograd=True):
        for _ in range(2):
            y = blocks.forward(checkpoint, blocks.input, block)
            torch.compile(backward, backend=backend)(y)
            leaves = [*blocks.weights, blocks.input]
            assert_equal([y.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)], due)
            for leaf in leaves:
                leaf.grad = None
    assert counters["compiled_autograd"]["captures"] > 0
    assert traced == [False] * 12  # three blocks, forward and backward, twice


@ours
def test_a_graph_break_inside_runs_the_region_eagerly(checkpoint: Checkpoint) -> None:
    blocks = Blocks()
    due = blocks.gradients(lambda: blocks.forward(plain, blocks.input))

    def block(w: Tensor, h: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return blocks.block(w, h)

    step = torch.compile(lambda x: blocks.forward(checkpoint, x, block), backend="aot_eager")
    for _ in range(2):
        assert_equal(blocks.gradients(lambda: step(blocks.input)), due)


@ours
def test_a_region_around_a_compiled_function_at_several_shapes(checkpoint: Checkpoint) -> None:
    compiled = torch.compile(Blocks.block, backend="aot_eager")
    for rows in (4, 4, 7, 3):
        blocks = Blocks(rows)
        due = blocks.gradients(lambda: blocks.forward(plain, blocks.input))  # noqa: B023 - called at once
        block = functools.partial(compiled, blocks)
        assert_equal(blocks.gradients(lambda: blocks.forward(checkpoint, blocks.input, block)), due)  # noqa: B023


def test_a_decorated_method_is_traced() -> None:
    class Decorated(Blocks):
        block = nested.checkpoint(determinism_check="none")(Blocks.block)

    blocks, same = Blocks(), Decorated()
    same.weights, same.input = blocks.weights, blocks.input
    due = blocks.gradients(lambda: blocks.forward(plain, blocks.input))
    step = torch.compile(lambda x: same.forward(plain, x), backend="aot_eager", fullgraph=True)
    assert_equal(same.gradients(lambda: step(same.input)), due)


def _with_a_decorated_forward(checkpoint: Checkpoint) -> torch.nn.Module:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        @checkpoint(determinism_check="none")  # type: ignore[untyped-decorator]
        def forward(self, h: Tensor) -> Tensor:
            return (h * self.weight).sin()

    return Model()


@pytest.mark.parametrize("module", [nested, native])
def test_a_module_whose_forward_is_decorated_is_not_compiled_alone(module: Any) -> None:
    model = _with_a_decorated_forward(module.checkpoint)
    x = torch.randn(3, requires_grad=True)
    (due,) = torch.autograd.grad(model(x).sum(), x)
    (seen,) = torch.autograd.grad(torch.compile(model, backend="aot_eager")(x).sum(), x)
    assert torch.equal(seen, due)
    with pytest.raises(RuntimeError, match="found no compiled frames"):
        torch.compile(model, backend="aot_eager", fullgraph=True)(x)


@pytest.mark.parametrize("module", [nested, native])
def test_a_module_whose_forward_is_decorated_is_traced_inside_another(module: Any) -> None:
    model = torch.nn.Sequential(_with_a_decorated_forward(module.checkpoint))
    x = torch.randn(3, requires_grad=True)
    (due,) = torch.autograd.grad(model(x).sum(), x)
    (seen,) = torch.autograd.grad(torch.compile(model, backend="aot_eager", fullgraph=True)(x).sum(), x)
    assert torch.equal(seen, due)


@pytest.mark.parametrize("module", [nested, native])
@pytest.mark.parametrize(
    "name", ["function", "context_fn", "debug", "determinism_check", "early_stop", "preserve_rng_state", "use_reentrant"]
)
def test_a_decorated_function_has_arguments_that_are_called_as_options_are(module: Any, name: str) -> None:
    @module.checkpoint(determinism_check="none")  # type: ignore[untyped-decorator]
    def scaled(h: Tensor, **kwargs: Tensor) -> Tensor:
        return h.sin() * kwargs[name] if kwargs else h.cos()

    x, scale = (torch.randn(3, requires_grad=True) for _ in range(2))
    due = torch.autograd.grad(scaled(x, **{name: scale}).sum(), [x, scale])
    step = torch.compile(lambda: scaled(x, **{name: scale}), backend="aot_eager", fullgraph=True)
    assert_equal([*torch.autograd.grad(step().sum(), [x, scale])], [*due])


@ours
def test_a_sequence_of_modules_is_traced(checkpoint: Checkpoint) -> None:
    module = {nested.checkpoint: nested, reentrant.checkpoint: reentrant, native.checkpoint: native}[checkpoint]
    chain = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4), torch.nn.ReLU())
    x = torch.randn(2, 4, requires_grad=True)
    leaves = [x, *chain.parameters()]
    due = torch.autograd.grad(chain(x).sum(), leaves)
    step = torch.compile(lambda x: module.checkpoint_sequential(chain, 2, x), backend="aot_eager", fullgraph=True)
    assert_equal([*torch.autograd.grad(step(x).sum(), leaves)], [*due])


@pytest.mark.parametrize("module", [nested, reentrant, native])
def test_a_sequence_of_modules_refuses_what_a_graph_cannot_keep(module: Any) -> None:
    chain = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.ReLU())
    run = functools.partial(module.checkpoint_sequential, chain, 2, preserve_rng_state=False)
    step = torch.compile(lambda x: run(x), backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="preserve_rng_state is False"):
        step(torch.randn(2, 4, requires_grad=True))
