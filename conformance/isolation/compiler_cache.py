"""Where compilers keep what they make: in a directory of the run, not in the user's, which is removed with the run.

Inductor precompiles headers into the directory that temporary files were in when its ``codecache`` was imported, whatever its
cache is set to. Processes that are started inside find that directory in the environment; for this one, the module is imported
while temporary files are there.
"""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "reprise_compiled_"


@contextmanager
def own_compiler_cache(*, compiles_here: bool = True) -> Iterator[str]:
    """Make inductor write to a new directory inside, also in processes that are started there. Yields its path.

    Without ``compiles_here`` only those processes compile, and this one does not import what compiles.
    """
    path = tempfile.mkdtemp(prefix=PREFIX)
    temporary = Path(path) / "tmp"
    temporary.mkdir()
    own = {
        "TMPDIR": str(temporary),
        "TORCHINDUCTOR_CACHE_DIR": path,
        "TRITON_CACHE_DIR": str(Path(path) / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # no pool of processes that compile
    }
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        if compiles_here:
            _import_compiler(temporary)
        yield path
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        shutil.rmtree(path, ignore_errors=True)


def _import_compiler(temporary: Path) -> None:
    before, tempfile.tempdir = tempfile.tempdir, str(temporary)
    try:
        importlib.import_module("torch._inductor.codecache")
    finally:
        tempfile.tempdir = before
