"""The state of the process that a run may change: seeded before it, and put back after it."""

from __future__ import annotations

import hashlib
import itertools
import random
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.utils.deterministic
from torch.nn.modules import module as module_hooks

from reprise import torch_private

_DETERMINISTIC: Any = torch.utils.deterministic  # its annotations lack what it has


def _device_module() -> Any:
    """The module of the accelerator that is available, such as ``torch.cuda``; None if there is none."""
    kind = torch.accelerator.current_accelerator()
    return torch.get_device_module(kind) if kind is not None and torch.accelerator.is_available() else None


def _initialized_device_module() -> Any:
    """The module of the accelerator, if it is in use; asking an unused one for its random numbers would initialise it."""
    module = _device_module()
    return module if module is not None and getattr(module, "is_initialized", bool)() else None


def seed_all(seed: int) -> None:
    """Seed torch, its devices, Python and numpy."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def random_streams() -> dict[str, str]:
    """A digest of the state of each random number stream: torch's, Python's, numpy's and each device's."""
    states = {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "Python": repr(random.getstate()).encode(),
        "numpy": b"".join(np.asarray(part).tobytes() for part in tuple(np.random.get_state())[1:]),
    }
    if (module := _initialized_device_module()) is not None:
        states |= {f"device {i}": state.numpy().tobytes() for i, state in enumerate(module.get_rng_state_all())}
    return {name: hashlib.blake2b(state, digest_size=8).hexdigest() for name, state in states.items()}


def finish(work: Callable[[], object]) -> None:
    """Do work that may be done twice: from its beginning after an interrupt, which is raised at the end."""
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            work()
            break
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


class PutBack:
    """A context that does work at its end, which may be done twice; from the work's beginning after an interrupt.

    It is no generator: if an interrupt comes as its end begins, it does nothing, whereas a generator would do the work when it
    is freed, at any time.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        finish(self.work)


class PutBackAgain(PutBack):
    """One that does so after an interrupt alone, which may have come as the end of another one inside it began."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            finish(self.work)


def preserved() -> PutBack:
    """Put back random numbers, filters of warnings, trace function, hooks on all modules, and what ``_settings`` has.

    An accelerator that was not used before has no random number streams yet. They will begin at the seed of PyTorch's generator
    on the CPU, as after ``torch.manual_seed`` or without any seed; a seed that was given to the accelerator alone before its
    first use is lost. Its streams are not put back if its module, such as that of MPS, does not say whether it is in use.
    """
    settings, stacks, trace = _settings(), Stacks.now(), sys.gettrace()
    others = _random_numbers(), _warning_filters(), _hooks_on_all_modules()

    def put_back() -> None:
        if sys.gettrace() is not trace:
            sys.settrace(trace)
        _set(settings)
        stacks.put_back()
        for one in others:
            one()

    return PutBack(put_back)


@dataclass(frozen=True)
class Stacks:
    """PyTorch's stacks of modes and of hooks for saved tensors: the depth of one, what is on another, the top of the third."""

    modes: int
    function_modes: tuple[Any, ...]
    hooks: tuple[Any, Any] | None
    refuses_hooks: str | None  # the message, if hooks for saved tensors are disabled

    @classmethod
    def now(cls) -> Stacks:
        """As they are."""
        modes, function_modes = torch_private.dispatch_mode_count(), tuple(torch_private.function_modes())
        return cls(modes, function_modes, _top_hooks(), torch_private.hooks_disabled_message())

    def put_back(self) -> None:
        """Take off what was left on the stacks."""
        while torch_private.dispatch_mode_count() > self.modes:
            torch_private.pop_dispatch_mode()
        while self._function_modes_left():
            torch_private.pop_function_mode()
        self._pop_hooks()
        if self.refuses_hooks is None:
            torch_private.enable_hooks()
        else:
            torch_private.disable_hooks(self.refuses_hooks)

    def left(self) -> dict[str, str]:
        """What has been put on the stacks since and is there still, by name of the stack."""
        hooks = self._pop_hooks()
        for one in reversed(hooks):
            torch_private.push_hooks(*one)
        modes = torch_private.dispatch_modes()[self.modes :]
        return {
            "hooks for saved tensors": _names(pack for pack, _ in hooks),
            "hooks for saved tensors being disabled": str(torch_private.hooks_disabled_message()),
            "dispatch modes": _names(map(type, modes)),
            "function modes": _names(map(type, self._function_modes_left())),
        }

    def _pop_hooks(self) -> list[tuple[Any, Any]]:
        popped = []
        while (top := _top_hooks()) not in (None, self.hooks):
            popped.append(top)
            torch_private.pop_hooks()
        return popped

    def _function_modes_left(self) -> list[Any]:
        """Those on top that were not there. That of the default device is at the bottom, and ``_set`` puts it back."""
        known = {*map(id, self.function_modes)}
        stack = reversed(torch_private.function_modes())
        return list(
            itertools.takewhile(lambda one: not (id(one) in known or isinstance(one, torch_private.DeviceContext)), stack)
        )


def _names(of: Iterable[Any]) -> str:
    return ", ".join(f"{getattr(one, '__module__', '')}.{getattr(one, '__qualname__', type(one).__qualname__)}" for one in of)


def process_state(before: Stacks) -> dict[str, str]:
    """What a step may leave changed in the process, by name: settings, modes, and what it left on ``Stacks``."""
    settings = {_NAMES.get(name, name.replace("_", " ")): str(value) for name, value in vars(_settings()).items()}
    of_modules = ((name, value) for name, value in vars(module_hooks).items() if name.startswith("_global_"))
    hooks = {name: len(value) for name, value in of_modules if isinstance(value, dict)}
    return {
        **settings,
        **before.left(),
        "hooks on all modules": str(hooks),
        "inference mode": str(torch.is_inference_mode_enabled()),
    }


def _top_hooks() -> Any:
    return torch_private.top_hooks(False)


def _random_numbers() -> Callable[[], None]:
    """What puts back the random number streams of now."""
    module = _initialized_device_module()
    devices = module.get_rng_state_all() if module is not None else None
    streams = torch.get_rng_state(), random.getstate(), np.random.get_state()
    seed = torch.initial_seed()  # which an accelerator that is first used later begins with, too

    def put_back() -> None:
        torch.set_rng_state(streams[0])
        random.setstate(streams[1])
        np.random.set_state(streams[2])
        if devices is not None:
            module.set_rng_state_all(devices)
        elif hasattr(later := _device_module(), "manual_seed_all"):
            later.manual_seed_all(seed)  # at once if it is in use by now, else at its first use

    return put_back


def _warning_filters() -> Callable[[], None]:
    """What puts back the filters of warnings of now, in the list that they are in."""
    of_warnings: Any = warnings
    filters, show = of_warnings.filters, of_warnings.showwarning
    before = [*filters]

    def put_back() -> None:
        of_warnings.filters, of_warnings.showwarning = filters, show
        if filters != before:
            warnings.resetwarnings()  # so that Python looks at the filters again
            filters[:] = before

    return put_back


def _hooks_on_all_modules() -> Callable[[], None]:
    """What puts back hooks on all modules, as of ``register_module_forward_hook``, in dicts; and flags that go with them."""
    before = {
        name: dict(value) if isinstance(value, dict) else value
        for name, value in vars(module_hooks).items()
        if name.startswith("_global_")
    }

    def put_back() -> None:
        for name, value in before.items():
            if isinstance(value, dict):
                hooks = getattr(module_hooks, name)
                hooks.clear()
                hooks.update(value)
            else:
                setattr(module_hooks, name, value)

    return put_back


_NAMES = {  # of settings, for a report
    "dtype": "default dtype",
    "device": "default device",
    "is_deterministic": "deterministic algorithms",
    "only_warns": "deterministic algorithms that only warn",
    "threads": "number of threads",
    "precision": "precision of float32 products",
    "detects_anomalies": "anomaly detection",
    "checks_nan": "anomaly detection's check for NaN",
    "caches_autocast": "autocast's cache",
    "uses_mkldnn": "mkldnn",
    "cudnn": "flags of cudnn",
    "attention": "kernels of attention",
    "fills_uninitialized_memory": "filling of uninitialized memory",
    "has_backward_threads": "threads of autograd",
    "has_grad_mode": "grad mode",
}


@dataclass(frozen=True)
class _Settings:
    dtype: torch.dtype
    device: torch.device
    is_deterministic: bool
    only_warns: bool
    threads: int
    precision: str
    detects_anomalies: bool
    checks_nan: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]  # of the CPU and the accelerator: whether it is on, and its dtype
    caches_autocast: bool
    uses_mkldnn: bool
    cudnn: tuple[bool, ...]
    attention: tuple[bool, ...]
    fills_uninitialized_memory: bool
    has_backward_threads: bool
    has_grad_mode: bool


def _settings() -> _Settings:
    return _Settings(
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.is_anomaly_enabled(),
        torch.is_anomaly_check_nan_enabled(),
        tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _device_types()),
        torch.is_autocast_cache_enabled(),
        torch_private.is_mkldnn_enabled(),
        tuple(getattr(torch.backends.cudnn, name) for name in _CUDNN),
        tuple(getattr(torch.backends.cuda, f"{name}_sdp_enabled")() for name in _ATTENTION),
        _DETERMINISTIC.fill_uninitialized_memory,
        torch_private.has_backward_threads(),
        torch.is_grad_enabled(),
    )


_CUDNN = "enabled", "benchmark", "deterministic", "allow_tf32"
_ATTENTION = "flash", "mem_efficient", "math", "cudnn"  # kernels of scaled dot product attention


def _device_types() -> tuple[str, ...]:
    accelerator = torch.accelerator.current_accelerator()
    return ("cpu",) if accelerator is None else ("cpu", accelerator.type)


def _set(before: _Settings) -> None:
    """Restore the settings that have changed: some setters import much of torch, which an interrupt may have cut in half."""
    now = _settings()
    torch.set_default_dtype(before.dtype)
    torch.set_autocast_cache_enabled(before.caches_autocast)
    for kind, is_enabled, dtype in before.autocast:
        torch.set_autocast_enabled(kind, is_enabled)
        torch.set_autocast_dtype(kind, dtype)
    torch.autograd.set_detect_anomaly(before.detects_anomalies, check_nan=before.checks_nan)
    if now.device != before.device:
        torch.set_default_device(None if before.device == torch.device("cpu") else before.device)
    if now.threads != before.threads:
        torch.set_num_threads(before.threads)
    if now.precision != before.precision:
        torch.set_float32_matmul_precision(before.precision)
    if (now.is_deterministic, now.only_warns) != (before.is_deterministic, before.only_warns):
        torch.use_deterministic_algorithms(before.is_deterministic, warn_only=before.only_warns)
    if now.uses_mkldnn != before.uses_mkldnn:
        torch_private.set_mkldnn_enabled(before.uses_mkldnn)
    if now.cudnn != before.cudnn:
        for name, value in zip(_CUDNN, before.cudnn, strict=True):
            setattr(torch.backends.cudnn, name, value)
    if now.attention != before.attention:
        for name, value in zip(_ATTENTION, before.attention, strict=True):
            getattr(torch.backends.cuda, f"enable_{name}_sdp")(value)
    _DETERMINISTIC.fill_uninitialized_memory = before.fills_uninitialized_memory
    torch_private.set_backward_threads(before.has_backward_threads)
    torch.set_grad_enabled(before.has_grad_mode)
