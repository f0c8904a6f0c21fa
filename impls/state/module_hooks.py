"""Forward hooks of modules with ``always_call=True``, which torch calls after any Exception, but not after a BaseException."""

from __future__ import annotations

from types import CodeType, FrameType

from impls.torch_private import code_of_hooked_call, global_hooks_always_called


def is_inside_hooks_always_called(frame: FrameType | None, outermost: CodeType) -> bool:
    """Whether a module with such hooks is being called, by this frame or those around it, up to the outermost."""
    while frame is not None and frame.f_code is not outermost:
        # Modules without any hooks have no such frame. The module itself is a variable of the function around it.
        if frame.f_code is code_of_hooked_call and (
            global_hooks_always_called or frame.f_locals["self"]._forward_hooks_always_called
        ):
            return True
        frame = frame.f_back
    return False
