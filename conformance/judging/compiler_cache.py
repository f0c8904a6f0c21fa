"""Where compilers cache what they make: in a directory of the run, not in the user's, which is removed with the run.

Inductor keeps its precompiled headers elsewhere for all processes of the user; they hold nothing of what is compiled.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "reprise_compiled_"


@contextmanager
def own_compiler_cache() -> Iterator[str]:
    """Make inductor write to a new directory inside, also in processes that are started there. Yields its path."""
    path = tempfile.mkdtemp(prefix=PREFIX)
    own = {
        "TORCHINDUCTOR_CACHE_DIR": path,
        "TRITON_CACHE_DIR": str(Path(path) / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # no pool of processes that compile
    }
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        yield path
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        shutil.rmtree(path, ignore_errors=True)
