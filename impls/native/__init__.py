"""Nested checkpointing whose hooks are in C++: the same function as ``impls.nested.checkpoint``, with the same rules.

``csrc`` has the region, its slots, what is remembered of saved tensors, and the recomputation's hooks. ``region`` is what
they leave to Python, most of which is nested's own; ``extension`` builds them on first use. Invariants that are to keep
programs from crashing the interpreter:
*References.* The graph owns slots (as what a hook packed) and, through the hook that unpacks, the region. A slot owns its
region; the region knows its slots without owning them, and a slot's end tells it that the graph has cleared that one. A
region owns its function, arguments and what it knows of existing tensors; regions around it only until its forward ends. A
recomputation owns its region, and the recomputed tensors until it is over; then the engine's task owns those (rule 4), and
the region knows them weakly. So no cycle is made but those that a user's function closes; regions and recomputations show the
garbage collector what they own.
*Indices.* Whatever may run Python may save more tensors: no reference into a vector is held across such a call.
*Callers.* The engine may let go of a hook and of what it was given while the hook runs, which holds both meanwhile.
*Exceptions.* Every function that Python calls catches all of C++, and has a Python exception set where it returns null. What a
call has set it sets back, whatever happens: hooks, modes, locks. The exception that is under way is kept until then.
*Depth.* Regions around one are recomputed one after the other, the outermost first, so that backward takes no more depth than
forward.
*Threads.* All state is used under the GIL, which nothing here lets go of by itself; hooks are called by the engine with the
GIL held. Free-threaded builds are refused. The process lock is taken in C++ only if nobody has it or waits for it; otherwise
nested's code takes it.
*End of the interpreter.* No object here has a destructor that needs Python, but those of Python's own; torch does not call
hooks or drop what they packed once Python has ended. What ``setup`` is given is never let go.
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
