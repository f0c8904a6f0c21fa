"""How native builds its extension, and what it says where it cannot."""

from __future__ import annotations

import sysconfig
import threading
from pathlib import Path

import pytest
import torch

from impls.native import NativeUnavailableError, api, checkpoint, extension


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRISE_CACHE", str(tmp_path))
    monkeypatch.setattr(extension, "_failure", "")


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NativeUnavailableError, match=r"no C\+\+ compiler 'no-such-compiler'. Install g\+\+"):
        extension.load_extension()


def test_a_free_threaded_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: int(name == "Py_GIL_DISABLED"))
    with pytest.raises(NativeUnavailableError, match="free-threaded"):
        extension.load_extension()


def test_a_failed_build_is_logged_and_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[Path] = []

    def fail(folder: Path) -> None:
        tries.append(folder)
        (folder / f"{extension.NAME}.so").touch()
        raise RuntimeError("expected ';' before '}'")

    monkeypatch.setattr(extension, "_compile", fail)
    for _ in range(2):
        with pytest.raises(NativeUnavailableError, match="cannot be built"):
            extension.load_extension()
    assert len(tries) == 1
    assert [path.read_text() for path in tmp_path.rglob("*.log")] == ["expected ';' before '}'"]
    assert not list(tmp_path.rglob("*.so"))


def test_what_is_in_the_cache_and_no_extension_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension, "_compile", lambda folder: (folder / f"{extension.NAME}.so").write_bytes(b"?"))
    with pytest.raises(NativeUnavailableError, match=r"cannot be loaded.*Delete it"):
        extension.load_extension()


def test_one_builds_while_others_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, begun, go_on = tmp_path / "key" / f"{extension.NAME}.so", threading.Event(), threading.Event()
    builds: list[str] = []

    def compile_slowly(folder: Path) -> None:
        builds.append(threading.current_thread().name)
        begun.set()
        assert go_on.wait(60)
        (folder / path.name).touch()

    monkeypatch.setattr(extension, "_compile", compile_slowly)
    monkeypatch.setattr(extension, "_report", lambda text: go_on.set() if text.startswith("waiting") else None)
    first = threading.Thread(target=extension._build, args=(path,), name="first")
    first.start()
    assert begun.wait(60)
    extension._build(path)
    first.join()
    assert (builds, path.exists()) == (["first"], True)


def test_another_source_is_another_extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "region.h").write_text("int one;")
    monkeypatch.setattr(extension, "SOURCE", tmp_path)
    before = extension._key(["c++"])
    assert extension._key(["c++"]) == before
    assert extension._key(["c++", "-O0"]) != before
    (tmp_path / "region.h").write_text("int other;")
    assert extension._key(["c++"]) != before


def test_without_grad_nothing_has_to_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise NativeUnavailableError("nothing to build")

    monkeypatch.setattr(api, "require_extension", fail)
    with torch.no_grad():
        assert checkpoint(torch.sin, torch.ones(2)).equal(torch.ones(2).sin())
    with pytest.raises(NativeUnavailableError, match="nothing to build"):
        checkpoint(torch.sin, torch.ones(2))
