"""Gradients: every output and every gradient is plain's, whatever the function does and however gradients are asked for."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import LAWS, law
from conformance.judging.refusals import HOOKS, REQUIRES_GRAD, TRACERS, TRANSFORMS
from conformance.judging.verdicts import Refuses
from conformance.programs.generator.combinations import covering
from conformance.programs.generator.operators import DIFFERENCE, NEGATIVE, SUM
from conformance.programs.program import Program
from conformance.programs.scenarios.regions.transforms import gradients_inside, traced, transforms
from conformance.programs.strategies import CORE, named, programs
from conformance.rows.for_readers import for_readers
from impls import Implementation


@for_readers("everyday", "wrong gradient", "backward, outputs, MLP")
@law(programs(), floor=8)
def test_core_programs_equal_plain(case: Case) -> None:
    """Outputs and all gradients equal plain's, and are None where plain's are."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "reshape, transpose, chunk, attention heads")
@law(programs(always=["views"]), floor=8)
def test_views_inside(case: Case) -> None:
    """Views taken inside a region do not change gradients."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "nn.ReLU(inplace=True), add_")
@law(programs(always=["inplace"]), floor=8)
def test_in_place_on_intermediates(case: Case) -> None:
    """Intermediates that nothing saved may be changed in place inside a region."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "detach, stop gradient, EMA, VQ-VAE")
@law(programs(always=["detach"]), floor=8)
def test_detached_islands(case: Case) -> None:
    """No gradient flows through a detached value inside a region, and all others flow."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "no_grad, stop gradient, frozen")
@law(programs(always=["no-grad"]), floor=8)
def test_no_grad_islands(case: Case) -> None:
    """A no_grad block inside a region is constant to backward, as under plain."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "autograd.Function, FlashAttention, Triton, custom kernel")
@law(programs(always=["custom-function"]), floor=8)
def test_custom_functions(case: Case) -> None:
    """Custom Functions that save inputs, outputs, intermediates or None work inside a region."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "autograd.Function, ctx.saved_tensors")
@law(programs(always=["saved-twice"]), floor=8)
def test_saved_tensors_are_readable_twice(case: Case) -> None:
    """A backward may read the saved tensors of its node more than once."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "indices, token ids, labels, embedding, GPT")
@law(programs(always=["indices"]), floor=8)
def test_integer_tensors(case: Case) -> None:
    """Integer tensors that are saved inside a region come back."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "empty batch, MoE, mixture of experts")
@law(programs(always=["zero-size"]), floor=8)
def test_zero_size_tensors(case: Case) -> None:
    """Tensors without elements are saved and come back."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "transpose, permute, channels_last")
@law(programs(always=["non-contiguous"]), floor=8)
def test_non_contiguous_tensors(case: Case) -> None:
    """Gradients of tensors that are not contiguous equal plain's."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "FFT, complex64")
@law(programs(always=["complex"]), floor=8)
def test_complex_tensors(case: Case) -> None:
    """Gradients of complex tensors equal plain's."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "bfloat16, half precision, LLM, GPT")
@law(programs(always=["bfloat16"]), floor=8)
def test_bfloat16_tensors(case: Case) -> None:
    """Gradients of bfloat16 tensors equal plain's."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "float16, half precision, GradScaler")
@law(programs(always=["float16"]), floor=4, effort=0.5)
def test_float16_tensors(case: Case) -> None:
    """Gradients of float16 tensors equal plain's."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "broadcast, bias, attention mask")
@law(programs(always=["unlike-leaves"]), floor=5, effort=0.6)
def test_leaves_of_other_shapes_and_dtypes(case: Case) -> None:
    """Arguments of other shapes and dtypes than the rest get gradients of their own shape and dtype."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "nn.Module, layer, transformer block, GPT, ResNet")
@law(programs(always=["modules"]), floor=5, effort=0.6)
def test_parameters_of_modules(case: Case) -> None:
    """Parameters of modules get their gradients, whether functions call the modules or a module is a region's function."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "weight tying, shared weights, embedding, GPT")
@law(programs(always=["closure"]), floor=8)
def test_parameters_read_through_a_closure(case: Case) -> None:
    """A parameter that several regions share and read through a closure gets the sum of all its gradients."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "encoder output, cross attention, LoRA, frozen")
@law(programs(always=["closure", "closure-intermediates"]), floor=8)
def test_intermediates_read_through_a_closure(case: Case) -> None:
    """A value computed outside a region and read through a closure gets its gradient."""
    case.equals_plain()


@for_readers(
    "everyday", "wrong gradient", "LoRA, PEFT, frozen, fine-tuning, requires_grad, first layer, enable_input_require_grads"
)
@law(programs(always=["no-input-grad"]), needs=["closure-gradients"], floor=8)
def test_no_input_requires_grad(case: Case) -> None:
    """A region of which no input requires grad still gives gradients to the parameters that it reads."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "large region, transformer block")
@law(programs(always=["long"], sometimes=["retain", "partial"]), floor=8)
def test_many_saved_tensors(case: Case) -> None:
    """A region that saves more than a handful of tensors gives plain's gradients, in every backward."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "residual, add, identity")
@law(programs(operators=(NEGATIVE, DIFFERENCE, SUM)), recomputes=False, floor=8)
def test_regions_that_save_nothing(case: Case) -> None:
    """A region whose operators save nothing for backward passes its gradients on."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "register_hook")
@law(programs(always=["hooks"]), floor=8, about=HOOKS)
def test_tensor_hooks_inside(case: Case) -> None:
    """A hook registered inside a region is applied once to the gradient of its tensor."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "auxiliary loss, MoE, hidden states, self.aux")
@law(programs(always=["escaping"]), floor=8)
def test_escaping_intermediates(case: Case) -> None:
    """A tensor that leaves a region by another way than its result carries gradients into it."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "autograd.grad, partial backward")
@law(programs(always=["grad"], sometimes={*CORE, "closure"}), needs=["subset-requests"], floor=8)
def test_autograd_grad_of_any_subset(case: Case) -> None:
    """torch.autograd.grad gives the gradients of any subset of leaves."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "backward(inputs=...), partial backward")
@law(programs(always=["inputs"], sometimes={*CORE, "closure"}), needs=["subset-requests"], floor=8)
def test_backward_with_inputs(case: Case) -> None:
    """backward(inputs=...) accumulates into the named leaves alone."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "double backward, create_graph, gradient penalty, WGAN-GP, MAML, Hessian")
@law(programs(always=["create-graph"]), needs=["higher-order"], floor=8)
def test_second_derivatives(case: Case) -> None:
    """Gradients taken with create_graph=True can be differentiated again."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "retain_graph, several losses")
@law(programs(always=["retain"]), floor=8)
def test_repeated_backward(case: Case) -> None:
    """Several backward passes over a retained graph accumulate what they do under plain."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "partial backward, multi-task, several losses")
@law(programs(always=["partial"]), floor=8)
def test_backward_of_one_output_first(case: Case) -> None:
    """Backward of one output, then of all, gives what it does under plain."""
    case.equals_plain()


@for_readers("advanced", "poor error", "retain_graph")
@law(programs(always=["again"]), gradients=False, floor=8)
def test_backward_again_without_retaining(case: Case) -> None:
    """A second backward over a graph that was not retained raises where plain raises."""
    case.equals_plain()


def _accumulation_hooks(checkpoint: Any, note: Any, device: str, *, regions: int) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    fired = []
    p.register_post_accumulate_grad_hook(lambda leaf: fired.append(leaf.grad.clone()))
    y = p * 1
    for _ in range(regions):
        y = checkpoint(lambda h: (h * p).sin(), y)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("what the hook saw", fired)


def _sparse(checkpoint: Any, note: Any, device: str, *, layout: str, passed: bool, nested: bool) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    matrix = torch.tensor([[0.0, 2.0], [3.0, 0.0]], device=device)
    matrix = matrix.to_sparse() if layout == "coo" else matrix.to_sparse_csr()

    def inner(h: Any, by: Any) -> Any:
        return (by * 1 if passed else matrix * 1) @ h.sin()

    def outer(h: Any, by: Any) -> Any:
        return (checkpoint(inner, h, by) if nested else inner(h, by)).cos()

    y = checkpoint(outer, p * 1, matrix)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


@for_readers("advanced", "wrong gradient", "torch.sparse, GNN, graph neural network")
@law(named(_sparse, layout=st.sampled_from(["coo", "csr"]), passed=st.booleans(), nested=st.booleans()), floor=3)
def test_sparse_matrices(case: Case) -> None:
    """A sparse matrix that a region is passed, or saves, gives plain's gradients."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "DDP, FSDP, register_post_accumulate_grad_hook, optimizer in backward")
@law(named(_accumulation_hooks, regions=st.integers(1, 4)), floor=2)
def test_accumulation_hooks_fire_once(case: Case) -> None:
    """A post-accumulate hook of a parameter that several regions share fires once per backward, on the final gradient."""
    case.equals_plain()


_APPLIED = st.sampled_from(["grad", "vjp", "jvp", "vmap", "functionalize"])
_TRANSFORMS = {"transform": _APPLIED, "inside": st.booleans(), "nested": st.booleans()}


@for_readers("advanced", "wrong gradient", "torch.func, functorch, vmap, jvp, functionalize, per-sample gradients")
@law(named(transforms, **_TRANSFORMS), recomputes=False, floor=4, about=TRANSFORMS)
def test_transforms_of_functions(case: Case) -> None:
    """Under a transform of torch.func, around a region or inside it, a gradient is plain's or it is refused."""
    # An error keeps the law too.
    try:
        case.equals_plain()
    except Refuses:
        return


_INSIDE = {"body": st.sampled_from(["tanh", "sigmoid", "product"]), "then": st.booleans(), "around": st.booleans()}


@for_readers("advanced", "poor error", "autograd.grad, create_graph, gradient penalty, forces, PINN")
@law(named(gradients_inside, **_INSIDE), needs=["higher-order"], floor=3, about=REQUIRES_GRAD)
def test_gradients_that_a_function_takes(case: Case) -> None:
    """A function may take a gradient of what it computes, to be differentiated: gradients and dispatch modes are plain's."""
    case.equals_plain()


_TRACED = {"nested": st.booleans(), "mode": st.sampled_from(["real", "fake", "symbolic"])}


@for_readers("advanced", "wrong gradient", "make_fx, torch.fx, FakeTensorMode, proxy tensors")
@law(named(traced, **_TRACED), recomputes=False, floor=3, about=TRACERS)
def test_steps_that_make_fx_traces(case: Case) -> None:
    """A step with forward and backward that make_fx traces gives plain's gradients, called on other values, or is refused."""
    # An error keeps the law too.
    try:
        case.equals_plain()
    except Refuses:
        return


# The features that combinations are drawn from, with the law about each alone. Those that make plain raise are left out, since
# nothing comes after the error.
ALONE = {
    "views": "views_inside",
    "inplace": "in_place_on_intermediates",
    "detach": "detached_islands",
    "no-grad": "no_grad_islands",
    "custom-function": "custom_functions",
    "saved-twice": "saved_tensors_are_readable_twice",
    "indices": "integer_tensors",
    "zero-size": "zero_size_tensors",
    "non-contiguous": "non_contiguous_tensors",
    "closure": "parameters_read_through_a_closure",
    "closure-intermediates": "intermediates_read_through_a_closure",
    "no-input-grad": "no_input_requires_grad",
    "hooks": "tensor_hooks_inside",
    "escaping": "escaping_intermediates",
    "grad": "autograd_grad_of_any_subset",
    "inputs": "backward_with_inputs",
    "create-graph": "second_derivatives",
    "retain": "repeated_backward",
    "partial": "backward_of_one_output_first",
    "keyword": "keyword_arguments",
    "containers": "containers_as_arguments",
    "container-outputs": "containers_as_outputs",
    "non-tensors": "non_tensor_arguments",
    "non-tensor-outputs": "non_tensor_outputs",
    "repeated-inputs": "the_same_tensor_passed_twice",
    "view-outputs": "outputs_that_are_views",
    "input-outputs": "outputs_that_are_inputs",
    "repeated-outputs": "an_output_returned_twice",
    "unused-outputs": "unused_outputs",
    "no-grad-outputs": "outputs_without_grad",
    "dropout": "dropout_masks_are_replayed",
    "stream": "ambient_stream_is_left_alone",
    "modules": "parameters_of_modules",
    "long": "many_saved_tensors",
    "unlike-leaves": "leaves_of_other_shapes_and_dtypes",
    "saves-hidden": "core_programs_equal_plain",
    "late-noise": "noise_that_is_saved_before_it_is_drawn",
    "seeds": "gradients_that_come_in",
    "batched-seeds": "gradients_of_a_batch_of_seeds",
    "layers": "functions_of_layers",
    "layer-modules": "modules_that_are_layers",
    "aliases": "arguments_that_share_a_storage",
    "many-arguments": "many_arguments_and_results",
    "many-outputs": "many_arguments_and_results",
    "named-arguments": "arguments_of_any_name",
    "unusual-containers": "containers_that_are_unusual",
    "training-layers": "layers_with_dropout",
    "complex": "complex_tensors",
    "bfloat16": "bfloat16_tensors",
    "float16": "float16_tensors",
}


@st.composite
def _mixed(draw: Any, row: tuple[str, ...]) -> Program:
    """A program that has nearly all features of a row. The simplest one has none, so that what fails shrinks to few."""
    return draw(programs(always=[feature for feature in row if draw(st.integers(0, 15))]))


def _combinations(claims: Implementation) -> tuple[st.SearchStrategy[Program], ...]:
    claimed = [f for f, name in ALONE.items() if name in LAWS and claims.expected(name, LAWS[name].needs) == "agrees"]
    return tuple(map(_mixed, covering(claimed))) or (programs(sometimes=CORE),)


@for_readers("advanced", "wrong gradient", "mixed features")
@law(_combinations, floor=8, effort=3.5)
def test_all_claimed_features_combined(case: Case) -> None:
    """Programs that mix features which an implementation keeps alone equal plain too."""
    case.equals_plain()
