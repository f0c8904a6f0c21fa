"""The extension in C++: built by the first call that needs it, then loaded from a cache; or the reason why it is not there.

The cache is ``$REPRISE_CACHE``, or ``reprise`` in the user's folder of caches. Its key is all that the file depends on: the
release of torch, Python, the compiler and the source. A process that needs what another one builds waits for it.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch

from impls.torch_private import POLICIES_ASK_FOR_HOOKS

NAME = "reprise_native"
SOURCE = Path(__file__).with_name("csrc")
FLAGS = ("-O2", "-fvisibility=hidden", "-Wno-invalid-offsetof")  # hidden: another build has state of its own
_failure = ""  # why it could not be had, so that not each call of this process tries again


class NativeUnavailableError(RuntimeError):
    """The extension cannot be built or loaded here; the message says why, and what to install."""


def unavailable(reason: str) -> NativeUnavailableError:
    """The error for a reason, which later calls give again."""
    global _failure
    _failure = reason
    return NativeUnavailableError(f"native is not available: {reason}. nested does the same in Python")


def load_extension() -> ModuleType:
    """The extension, built if need be. Raises NativeUnavailableError."""
    if _failure:
        raise unavailable(_failure)
    command = _compiler()
    path = _cache() / f"{NAME}-{_key(command)}" / f"{NAME}.so"
    if not path.exists():
        try:
            _build(path)
        except OSError as error:
            raise unavailable(f"its cache cannot be written: {error}. Set REPRISE_CACHE to a folder that can") from error
    try:
        return _import(path)
    except ImportError as error:
        raise unavailable(f"{path} cannot be loaded: {error}. Delete it to have it built anew") from error


def _compiler() -> list[str]:
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise unavailable("this Python is free-threaded, and the extension relies on the GIL")
    if POLICIES_ASK_FOR_HOOKS:  # which are to be told by a mark on the hooks, as nested's are
        raise unavailable(f"it has not been written for the selective policies of torch {torch.__version__}")
    if sys.platform != "linux":
        raise unavailable(f"it was written for Linux, and this is {sys.platform}")
    command = shlex.split(os.environ.get("CXX", "c++"))
    if not command or shutil.which(command[0]) is None:
        raise unavailable(f"there is no C++ compiler {' '.join(command)!r}. Install g++, or set CXX")
    return command


def _cache() -> Path:
    if given := os.environ.get("REPRISE_CACHE"):
        return Path(given)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reprise"
    except RuntimeError as error:
        raise unavailable(f"there is no folder for its cache: {error} Set REPRISE_CACHE to one") from error


def _sources() -> list[Path]:
    return sorted(SOURCE.iterdir())


def _key(command: list[str]) -> str:
    """What the file depends on, in 16 digits."""
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout
    parts = [torch.__version__, str(torch.version.git_version), sys.version, platform.machine(), *command, version, *FLAGS]
    digest = hashlib.sha256("\0".join(parts).encode())
    for source in _sources():
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _import(path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_file_location(NAME, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _build(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with _one_process(path.with_suffix(".lock")):
        if path.exists():  # another process has built it meanwhile
            return
        if shutil.which("ninja") is None:
            raise unavailable("torch builds extensions with ninja, which is not there. Install ninja")
        started = time.monotonic()
        _report(f"building impls.native for torch {torch.__version__}, once; it takes about half a minute ... ")
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            try:
                _compile(Path(folder))
            except Exception as error:
                _report("failed\n")
                log = path.with_suffix(".log")
                whole = f"{error}\n{error.__cause__ or ''}".strip()
                log.write_text(whole)
                told = f"it cannot be built with this compiler and this torch: {_first_error(whole)}"
                raise unavailable(f"{told}. Install g++ and the headers of Python; all of it is in {log}") from error
            (Path(folder) / path.name).replace(path)  # whole or not at all
        _report(f"done in {time.monotonic() - started:.0f} s\n")


def _compile(folder: Path) -> None:
    from torch.utils import cpp_extension  # takes a while, and prints what it finds

    sources = [str(one) for one in _sources() if one.suffix == ".cpp"]
    cpp_extension.load(NAME, sources, extra_cflags=[*FLAGS], build_directory=str(folder), is_python_module=False, verbose=False)


def _first_error(text: str) -> str:
    """What a compiler or linker complains about first, or else what is said first."""
    lines = [line.strip() for line in text.splitlines()] or [""]
    return next((line for line in lines if "error: " in line or "undefined symbol" in line), lines[0])


def _report(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


@contextmanager
def _one_process(path: Path) -> Iterator[None]:
    """Wait until no other process is in here. A lock of the system's: it ends with the process that has it."""
    import fcntl

    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _report("waiting for another process that builds impls.native ... \n")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
