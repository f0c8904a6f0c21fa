"""Nested checkpointing whose hooks are in C++: the same function as ``impls.nested.checkpoint``, with the same rules.

``csrc`` has the region, what is remembered of saved tensors, the recomputation, and the hooks of both. ``region`` is what
they leave to Python, most of which is nested's own; ``extension`` builds them on first use. Where autograd saves a tensor, it
asks its engine for hooks. ``csrc/hooks.h`` stands in for the engine and, while a region's hooks are on top, gives it some that
are objects of C++, called without the GIL; all else goes on to the engine that was there. For Python, and for whoever
calls a region's hooks from there, they are ordinary hooks, and a saved tensor is a ``Slot``, made when asked for.

Invariants that are to keep programs from crashing the interpreter:
*References.* What the graph has of a saved tensor owns the region, and its end tells the region that the graph has cleared
that one; so does a slot. Such references are counted in C++, and only the last one takes the GIL to let go of the region. A
region owns its function, arguments and what it knows of existing tensors; regions around it only until its forward ends. A
recomputation owns its region until it is over. Who runs it owns the recomputed tensors, then the engine's task does (rule 4);
region and recomputation know them weakly. So no cycle is made but those that a user's function closes; regions and
recomputations show the garbage collector what they own.
*Indices.* Whatever may run Python may save more tensors: no reference into a vector is held across such a call, or after a
lock is released.
*Callers.* The engine may let go of a hook and of what it was given while the hook runs, which holds both meanwhile.
*Exceptions.* Every function that Python calls catches all of C++, and has a Python exception set where it returns null. What
a call has set it sets back, whatever happens: hooks, modes, locks. The exception that is under way is kept until then.
*Depth.* Regions around one are recomputed one after the other, the outermost first, so that backward takes no more depth than
forward.
*Threads.* What hooks use without the GIL is guarded by a mutex: of the region, of the recomputation, which may take the
region's as well, and of the recomputed tensors. Nothing that may take the GIL, run Python or drop a tensor happens under one.
All other state is used under the GIL. Free-threaded builds are refused. The process lock is taken in C++ only if nobody has
it or waits for it; otherwise nested's code takes it.
*End of the interpreter.* Once Python has ended, what the graph owns of it is left alone. What ``setup`` is given and the
engine are never let go.
"""

from impls.native.api import IMPLEMENTATION as IMPLEMENTATION
from impls.native.api import CheckpointError as CheckpointError
from impls.native.api import checkpoint as checkpoint
from impls.native.api import checkpoint_sequential as checkpoint_sequential
from impls.native.api import noop_context_fn as noop_context_fn
from impls.native.api import set_checkpoint_debug_enabled as set_checkpoint_debug_enabled
from impls.native.api import set_checkpoint_early_stop as set_checkpoint_early_stop
from impls.native.extension import NativeUnavailableError as NativeUnavailableError
from impls.native.extension import load_extension as load_extension
