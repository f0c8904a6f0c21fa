"""Nested non-reentrant checkpointing with early stop: a drop-in for ``torch.utils.checkpoint`` with ``use_reentrant=False``.

While a region's forward runs, a pair of saved-tensor hooks replaces each tensor that autograd saves by an empty slot.
The first slot that backward unpacks makes the region run again, under hooks that collect what is saved this time.
Forward and recomputation save in the same order, so a slot is found again by its index. Rules 1 to 6 of nesting:

1. A saved tensor belongs to the innermost region alone.   4. Recomputed tensors belong to one backward.
2. An inner region's inputs are saved by its parent.       5. Recomputation stops once what is needed is there.
3. Recomputation starts as if no region were active.       6. Backward may run inside a region.

Each rule is kept where its number stands. Read ``api``, which makes a ``Region`` of a call; ``region``, whose slots stand in
the graph and begin a ``recomputation`` as they are unpacked; ``inputs``, its arguments; and last ``user_hooks`` and
``operator_log``. What a run restores around itself is in ``impls.state``, what is kept of single tensors in ``impls.tensors``.
The region sees by the count of references to a slot whether the graph has cleared it. Recomputed tensors are owned by the
engine's task, so that they go with it.
"""

from impls.nested.api import IMPLEMENTATION as IMPLEMENTATION
from impls.nested.api import SAC_IGNORED_OPS as SAC_IGNORED_OPS
from impls.nested.api import CheckpointError as CheckpointError
from impls.nested.api import CheckpointPolicy as CheckpointPolicy
from impls.nested.api import GraphExecGroup as GraphExecGroup
from impls.nested.api import SelectiveCheckpointContext as SelectiveCheckpointContext
from impls.nested.api import checkpoint as checkpoint
from impls.nested.api import checkpoint_sequential as checkpoint_sequential
from impls.nested.api import create_selective_checkpoint_contexts as create_selective_checkpoint_contexts
from impls.nested.api import noop_context_fn as noop_context_fn
from impls.nested.api import set_checkpoint_debug_enabled as set_checkpoint_debug_enabled
from impls.nested.api import set_checkpoint_early_stop as set_checkpoint_early_stop
