"""Every private name of torch that ``impls`` uses, under a plain name: what it is for, and what happens without it.

All of them were found in torch 2.11 to 2.15 unless a comment says otherwise. If a release lacks one, importing this module
raises an ImportError that names both, unless a comment says what is done instead. Where torch has a public name that does the
same, impls uses that one. Functions and classes are assigned as they are, so that calls take no longer; attributes of objects,
which cannot be, are listed in ``ATTRIBUTES``.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from types import CodeType, MappingProxyType
from typing import Any

import torch
import torch.utils.checkpoint

RELEASES = "2.11 to 2.15"

try:
    # Fake tensors compute shapes alone: measuring a stage of a schedule takes their mode from the example.
    from torch._subclasses.fake_tensor import FakeTensor as FakeTensor

    # The mode of ``with torch.device(...)``, by which it is told from other function modes and restored.
    from torch.utils._device import DeviceContext as DeviceContext

    # The base of modes that see each operator. Documented by torch, in a private module.
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

    # Whether a subclass says by __tensor_flatten__ which tensors it consists of.
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass as is_traceable_wrapper_subclass

    # Containers of arguments and outputs. torch has no public pytree; optree would be another dependency.
    from torch.utils._pytree import TreeSpec as TreeSpec
    from torch.utils._pytree import keystr as keystr
    from torch.utils._pytree import tree_flatten as tree_flatten
    from torch.utils._pytree import tree_flatten_with_path as tree_flatten_with_path
    from torch.utils._pytree import tree_is_leaf as tree_is_leaf
    from torch.utils._pytree import tree_leaves as tree_leaves
    from torch.utils._pytree import tree_map_only as tree_map_only
    from torch.utils._pytree import tree_unflatten as tree_unflatten

    # The stack of saved-tensor hooks. The public torch.autograd.graph.saved_tensors_hooks cannot show the pair on top or take
    # pairs off out of order, and costs an object for each region.
    push_hooks = torch._C._autograd._push_saved_tensors_default_hooks
    pop_hooks = torch._C._autograd._pop_saved_tensors_default_hooks
    top_hooks = torch._C._autograd._top_saved_tensors_default_hooks  # (True): the pair on top, also while something is traced
    disable_hooks = torch._C._autograd._saved_tensors_hooks_disable
    enable_hooks = torch._C._autograd._saved_tensors_hooks_enable
    hooks_disabled_message = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message  # None: not disabled

    # The backward that runs on this thread: a number, -1 for none. Recomputed tensors belong to one backward (rule 4).
    current_graph_task_id = torch._C._current_graph_task_id
    # The node that it executes.
    current_autograd_node = torch._C._current_autograd_node
    # Whether it is going to execute a node; tensors to come are loaded ahead, and hooks know whom to wait for.
    will_engine_execute_node = torch._C._will_engine_execute_node
    # Calls something when it ends. torch.autograd.graph.queue_callback does the same from 2.15 on.
    queue_callback: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback
    # Whether it is a backward() for all leaves, which alone may run another one inside, as reentrant does.
    is_backward_for_all_leaves = torch.autograd._is_checkpoint_valid
    # The group of backward calls that it is one of, by torch.utils.checkpoint.GraphExecGroup; None for none.
    current_graph_exec_group = torch._C._get_graph_exec_group
    # The number that the next node of this thread gets. It tells what is older than a region, and one operator from the next.
    next_sequence_number = torch._C._autograd._get_sequence_nr

    # What ends a recomputation by torch.utils.checkpoint early, and passes through what runs inside: no error of the program.
    StopRecomputationError: type[Exception] = torch.utils.checkpoint._StopRecomputationError

    # What create_selective_checkpoint_contexts gives for forward and for recomputation; of contexts torch.compile knows these.
    SelectiveForward: type[TorchDispatchMode] = torch.utils.checkpoint._CachingTorchDispatchMode
    SelectiveRecomputation: type[TorchDispatchMode] = torch.utils.checkpoint._CachedTorchDispatchMode
    # How torch.compile takes the frames of a function's code. torch.compiler.disable would keep them out of graphs as well, and
    # costs a call each time.
    _set_frame_strategy = torch._C._dynamo.eval_frame.set_code_exec_strategy
    _FrameStrategy, _FrameAction = torch._C._dynamo.eval_frame._FrameExecStrategy, torch._C._dynamo.eval_frame._FrameAction

    # Gives tensors the versions of those that they stand for, so that autograd checks them as it would have checked these.
    set_version_counters = torch._C._autograd._unsafe_set_version_counter
    # Whether a tensor has a storage. Asking for a storage that is not there is an error, which takes longer to catch.
    has_storage = torch._C._has_storage
    # Whether a tensor stands for another one inside of torch.func.functionalize: it has a storage, but no memory.
    is_functional_tensor = torch._is_functional_tensor
    # A detached alias of a plain tensor which dispatch modes do not see.
    make_subclass = torch.Tensor._make_subclass
    # A view that is lazily negated, as Tensor.imag of a conjugated one. Tensor.neg computes.
    neg_view = torch._neg_view
    # Whether ``tensor.data = other`` is possible; if not, the two are swapped.
    has_compatible_shallow_copy_type = torch._has_compatible_shallow_copy_type

    # The base of all batch norms, which take their statistics from a microbatch; the public classes would have to be listed.
    BatchNorm = torch.nn.modules.batchnorm._BatchNorm

    # Forward hooks of all modules that are called after an error, too.
    global_hooks_always_called = torch.nn.modules.module._global_forward_hooks_always_called
    # The part of a module's call in which its hooks run; without hooks that is passed by. None where torch has no such part.
    code_of_hooked_call: CodeType | None = next(
        (each for each in torch.nn.Module._call_impl.__code__.co_consts if getattr(each, "co_name", "") == "inner"), None
    )

    # torch.set_grad_enabled makes an object for each recomputation.
    set_grad_enabled = torch._C._set_grad_enabled
    # How many dispatch modes and function modes are active, and the function mode at an index.
    dispatch_mode_count = torch._C._len_torch_dispatch_stack
    function_mode_count = torch._C._len_torch_function_stack
    function_mode_at = torch._C._get_function_stack_at
    # Whether ``__torch_function__`` of subclasses and modes is called on this thread. If backward is called as the method of a
    # subclass's tensor, that of subclasses is not.
    function_state: Callable[[], Any] = torch._C._get_torch_function_state  # type: ignore[attr-defined]
    set_function_state: Callable[[Any], None] = torch._C._set_torch_function_state  # type: ignore[attr-defined]
    # The dispatch modes that are active, to refuse one inside itself.
    dispatch_modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack
    # Puts a dispatch mode on top, without what entering it does besides.
    push_dispatch_mode = torch.utils._python_dispatch._push_mode
    # A context without the user's dispatch modes, for what is no operator of the user's function.
    disable_dispatch_modes = torch.utils._python_dispatch._disable_current_modes
    # Contexts in which subclasses and modes see no operator, for what an implementation does by itself.
    DisableTorchDispatch = torch._C._DisableTorchDispatch
    DisableTorchFunction = torch._C.DisableTorchFunction
    DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass

    # torch.are_deterministic_algorithms_enabled and its sibling are functions of Python around these, and each region asks.
    deterministic_algorithms = torch._C._get_deterministic_algorithms
    deterministic_algorithms_warn_only = torch._C._get_deterministic_algorithms_warn_only
    # torch.use_deterministic_algorithms sets options of the compiler, too.
    set_deterministic_algorithms = torch._C._set_deterministic_algorithms

    # What belongs to a thread and, unlike threading.local, to those on which autograd runs the backward that it waits for.
    # Where torch does not count the reference, or cannot forget the object, another way is taken below.
    has_thread_object = torch._C._is_key_in_tls
    get_thread_object = torch._C._get_obj_in_tls
    set_thread_object: Callable[[str, object], None] = torch._C._stash_obj_in_tls

    # Transforms of torch.func: the innermost under way or None, and tensors that belong to one.
    innermost_transform = torch._C._functorch.peek_interpreter_stack
    is_batched_tensor = torch._C._functorch.is_batchedtensor
    is_transformed_tensor = torch._C._functorch.is_functorch_wrapped_tensor
    is_differentiated_tensor = torch._C._functorch.is_gradtrackingtensor
    untransformed_tensor = torch._C._functorch.get_unwrapped
except (AttributeError, ImportError) as error:
    raise ImportError(
        f"torch {torch.__version__} lacks a private name that impls uses: {error}. Install a release of {RELEASES}; impls "
        "was run with 2.11, 2.13 and 2.15"
    ) from error


def run_frames_untraced(code: CodeType) -> None:
    """Let frames of this code, and of what they call, run as they are where torch.compile begins no graph before them.

    A graph that is under way goes on into the function, as into others.
    """
    _set_frame_strategy(code, _FrameStrategy(_FrameAction.SKIP, _FrameAction.SKIP))


def _set_counted(key: str, value: object) -> None:
    """Keep an object for this thread, and count the reference to it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    torch._C._stash_obj_in_tls(key, value)


def _is_counted() -> bool:
    """Whether torch counts the reference to an object of a thread; torch 2.11 does not, and lets go of it all the same."""
    key, value = "reprise.probe", object()
    before = sys.getrefcount(value)
    torch._C._stash_obj_in_tls(key, value)
    is_counted = sys.getrefcount(value) > before
    if is_counted:
        remove_thread_object(key)
    else:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
        _set_counted(key, None)
    return is_counted


# torch 2.11 cannot forget an object of a thread: None takes its place.
remove_thread_object: Callable[[str], object] = getattr(
    torch._C, "_remove_obj_from_tls", lambda key: set_thread_object(key, None)
)
if not _is_counted():
    set_thread_object = _set_counted

# Makes what a node keeps of a tensor, without a node: (tensor, whether it is an output). torch 2.11 has none, and then a custom
# Function makes a node for it.
make_saved_tensor: Callable[[torch.Tensor, bool], Any] | None = getattr(torch._C._autograd, "_make_saved_tensor", None)
# Whether selective policies ask for the user's saved-tensor hooks around a region, which is from 2.14 on.
POLICIES_ASK_FOR_HOOKS = hasattr(torch.utils.checkpoint, "_current_user_saved_tensors_hooks")

# Attributes of objects, by what they are for. They stand where they are used, as a function around each would take longer than
# reading it. In a release without one that is an AttributeError, which names it.
ATTRIBUTES: Mapping[str, str] = MappingProxyType(
    {
        # of tensors and storages
        "_version": "counts changes in place; nested reads it at each tensor that it saves and unpacks",
        "_base": "the tensor that this one is a view of; nested reads it at each tensor that it saves",
        "_is_view": "whether it is a view, and _base is worth asking for",
        "_indices": "of sparse tensors that are not coalesced, where indices() is an error",
        "_values": "of sparse tensors that are not coalesced, where values() is an error",
        "_backward_hooks": "the hooks on a tensor or module, which are to be as they were after a recomputation",
        "_post_accumulate_grad_hooks": "the hooks on a leaf, which are to be as they were after a recomputation",
        "_is_param": "makes isinstance(tensor, torch.nn.Parameter) true of a tensor that stands for one",
        "_cdata": "the number of a storage; torch.multiprocessing.reductions.StorageWeakRef.cdata is the same for a weak one",
        "_nested_tensor_size": "the shapes of the parts of a nested tensor of strided layout, which has no shape itself",
        # of nodes
        "_sequence_nr": "the number of a node, which grows as nodes are made; nested reads it at each tensor that it saves",
        "_set_sequence_nr": "gives a node the number by which the engine runs it before others",
        "_raw_saved_tensors": "what a custom Function's node has saved, without unpacking it",
        "_saved_running_mean": "tells a node of batch norm from others",
        "_saved_training": "whether a node of batch norm is one of training, which does not read the statistics",
        "_saved_train": "the same, of a node of the second order",
        # of tensors, how the names begin of what torch.compile notes on them
        "_dynamo": "a change of these attributes is none of the program's",
        # of operators
        "_schema": "which arguments an operator writes to",
        # of modules
        "_parameters": "parameters by name; parameters() leaves out what is there twice",
        "_buffers": "buffers by name; they are assigned past the checks of __setattr__",
        "_modules": "modules by name; children() leaves out what is there twice",
        "_flat_weights": "of recurrent modules: their weights in a list, which is to hold the originals again after a run",
        "_flat_weight_refs": "of recurrent modules: weak references to these",
        "_forward_hooks_always_called": "which forward hooks are called after an error, too: they undo what others have done",
        "_hooks": "how the names of all that hold hooks end: a Sequential with hooks cannot be cut into slices",
        "_get_name": "a Sequential that is shown by another name may be cut, one with other methods of its own may not",
        # of torch.cuda and other modules of devices
        "_initialized": "whether the runtime was started; not every device has is_initialized()",
        # of our own objects, for torch to read
        "_checkpoint_internal": "tells selective policies that a pack hook is one of a checkpoint",
        "_user_hooks": "where selective policies look for the hooks of the user around a checkpoint",
    }
)
