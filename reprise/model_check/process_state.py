"""The state of the process that a run may change: seeded before it, and put back after it."""

from __future__ import annotations

import functools
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
        _each(lambda: _set(settings), stacks.put_back, *others)

    return PutBack(put_back)


def _each(*steps: Callable[[], object]) -> None:
    """Do each step, also after one that fails. The first error is raised at the end."""
    failed = list[Exception]()
    for step in steps:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - raised below
            failed.append(error)
    if failed:
        raise failed[0]


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
    "precisions": "fp32_precision of backends",
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
    precision: str | None  # None if PyTorch does not say it, since fp32_precision of a backend was set
    precisions: tuple[str, ...]  # fp32_precision of each of _PRECISIONS
    detects_anomalies: bool
    checks_nan: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]  # of the CPU and the accelerator: whether it is on, and its dtype
    caches_autocast: bool
    uses_mkldnn: bool
    cudnn: tuple[bool | None, ...]
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
        _legacy(torch.get_float32_matmul_precision),
        tuple(torch_private.fp32_precision(*one) for one in _PRECISIONS),
        torch.is_anomaly_enabled(),
        torch.is_anomaly_check_nan_enabled(),
        tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _device_types()),
        torch.is_autocast_cache_enabled(),
        torch_private.is_mkldnn_enabled(),
        tuple(_legacy(functools.partial(getattr, torch.backends.cudnn, name)) for name in _CUDNN),
        tuple(getattr(torch.backends.cuda, f"{name}_sdp_enabled")() for name in _ATTENTION),
        _DETERMINISTIC.fill_uninitialized_memory,
        torch_private.has_backward_threads(),
        torch.is_grad_enabled(),
    )


_CUDNN = "enabled", "benchmark", "deterministic", "allow_tf32"
_ATTENTION = "flash", "mem_efficient", "math", "cudnn"  # kernels of scaled dot product attention
_PRECISIONS = (  # outer ones first: an inner one that is "none" has the value of the one around it
    ("generic", "all"),
    *((backend, part) for backend in ("cuda", "mkldnn") for part in ("all", "matmul", "conv", "rnn")),
)


def _legacy(get: Callable[[], Any]) -> Any:
    """A setting; None if PyTorch refuses to read it, as it may where fp32_precision of a backend was set."""
    try:
        return get()
    except RuntimeError:
        return None


def _device_types() -> tuple[str, ...]:
    accelerator = torch.accelerator.current_accelerator()
    return ("cpu",) if accelerator is None else ("cpu", accelerator.type)


def _set(before: _Settings) -> None:
    """Restore the settings: those whose setters import nothing always, others if changed, as an import may be cut in half."""
    now = _settings()
    _each(
        lambda: torch.set_default_dtype(before.dtype),
        lambda: torch.set_autocast_cache_enabled(before.caches_autocast),
        lambda: _set_autocast(before),
        lambda: torch.autograd.set_detect_anomaly(before.detects_anomalies, check_nan=before.checks_nan),
        lambda: _set_changed(now, before),
        lambda: _set_precision(now, before),
        lambda: setattr(_DETERMINISTIC, "fill_uninitialized_memory", before.fills_uninitialized_memory),
        lambda: torch_private.set_backward_threads(before.has_backward_threads),
        lambda: torch.set_grad_enabled(before.has_grad_mode),
    )


def _set_autocast(before: _Settings) -> None:
    for kind, is_enabled, dtype in before.autocast:
        torch.set_autocast_enabled(kind, is_enabled)
        torch.set_autocast_dtype(kind, dtype)


def _set_changed(now: _Settings, before: _Settings) -> None:
    if now.device != before.device:
        torch.set_default_device(None if before.device == torch.device("cpu") else before.device)
    if now.threads != before.threads:
        torch.set_num_threads(before.threads)
    if (now.is_deterministic, now.only_warns) != (before.is_deterministic, before.only_warns):
        torch.use_deterministic_algorithms(before.is_deterministic, warn_only=before.only_warns)
    if now.uses_mkldnn != before.uses_mkldnn:
        torch_private.set_mkldnn_enabled(before.uses_mkldnn)
    if now.attention != before.attention:
        for name, value in zip(_ATTENTION, before.attention, strict=True):
            getattr(torch.backends.cuda, f"enable_{name}_sdp")(value)


def _set_precision(now: _Settings, before: _Settings) -> None:
    """Restore precisions: first by the older setters, which change fp32_precision of backends, too."""
    if before.precision is not None and before.precision != now.precision:
        torch.set_float32_matmul_precision(before.precision)
    for name, value, seen in zip(_CUDNN, before.cudnn, now.cudnn, strict=True):
        if value is not None and value != seen:
            setattr(torch.backends.cudnn, name, value)
    for one, wanted in zip(_PRECISIONS, before.precisions, strict=True):
        for precision in ("none", wanted):  # "none" is enough if that of the backend around it is the same
            if torch_private.fp32_precision(*one) != wanted:
                torch_private.set_fp32_precision(*one, precision)
