"""The jobs of the project: judge implementations, reproduce papers, test the suite itself, check the code.

A bare ``nox`` does all of them but ``end_to_end``, ``mutants``, ``portability``, ``soak``, ``operators``, ``compiled``,
``distributed``, ``compare``, ``zoo``, ``published``, ``docs``, and ``peers``, whose packages do not install everywhere.

After ``--``, every session takes ``--torch VERSION``, another release than the pinned one; ``conformance``, ``peers``,
``operators``, ``portability`` and ``tests`` pass the rest on to the conformance run, ``soak`` to
``python -m reprise soak``. The user's current directory and PYTHONPATH are importable there.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2025.2.9"
# pip's configuration (a local wheel, an index of CPU builds) decides which build of torch is installed; uv ignores it.
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["conformance", "tests", "reproduce", "lint"]

ROOT = Path(__file__).parent
WORKERS = ["-n", "auto"]  # one for each core; a -n of the user's comes later and wins
OLDER = "--older"  # judges what is of older code, and publishes it with the rest
PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")


def _install(session: nox.Session, *groups: str) -> list[str]:
    """Install dependency groups and torch; the arguments that are left for what the session runs."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--torch", metavar="VERSION")
    options, rest = parser.parse_known_args(session.posargs)
    torch = [f"torch=={options.torch}"] if options.torch else nox.project.dependency_groups(PROJECT, "torch")
    session.install(*torch, *nox.project.dependency_groups(PROJECT, *groups))
    return rest


def _install_peers(session: nox.Session) -> None:
    """Install what others ship one by one, as far as it can be here; what cannot is named, and pip says why."""
    for requirement in nox.project.dependency_groups(PROJECT, "peers"):
        try:  # without what they ask for, since that would bring another build of torch
            session.install(
                "--no-deps", "--no-build-isolation", requirement, env={"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}
            )
        except CommandFailed:
            session.warn(f"{requirement} could not be installed, pip says why above; its peers are left out")


def _importable(session: nox.Session) -> dict[str, str]:
    """The environment in which the user's modules can be imported."""
    paths = [str(session.invoked_from), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _conformance(session: nox.Session, *arguments: str) -> None:
    session.run("python", "-m", "pytest", "conformance", *WORKERS, *arguments, env=_importable(session))


def _mark(session: nox.Session) -> None:
    """Mark on all pages what was measured on older code, whenever a part of them is written anew."""
    session.run("python", "-m", "reprise", "published", "--mark")


@nox.session
def conformance(session: nox.Session) -> None:
    """Judge implementations by the laws."""
    rest = _install(session, "suite")
    _conformance(session, *rest)
    if not {*rest} - {OLDER}:  # else nothing is published
        _mark(session)


@nox.session
def tests(session: nox.Session) -> None:
    """Test implementations and suite, with a sample of the mutants; then judge every built-in on few cases."""
    rest = _install(session, "tests")
    folders = [f"tests/{folder}" for folder in ("unit", "suite", "mutants")]
    session.run("python", "-m", "pytest", *folders, "--mutants", "sample", *WORKERS)
    _conformance(session, "--profile", "quick", *rest)


@nox.session(default=False)
def end_to_end(session: nox.Session) -> None:
    """Test what takes longer: commands as users run them, processes that judge, worlds of ranks, and the benches."""
    rest = _install(session, "tests")
    session.run("python", "-m", "pytest", "tests/end_to_end", *WORKERS, *rest)
    session.run("python", "-m", "pytest", "tests/benches", *WORKERS, "--dist", "loadfile", *rest)  # they share what is measured


@nox.session(default=False)
def mutants(session: nox.Session) -> None:
    """Test that the laws catch the mutants: all of them, or with --mutants rest those that tests leaves out."""
    rest = _install(session, "tests")
    session.run("python", "-m", "pytest", "tests/mutants", *WORKERS, *rest)


@nox.session(default=False)
def portability(session: nox.Session) -> None:
    """Judge implementations on few cases under several settings of the processor's kernels: verdicts are the same."""
    session.run("python", "-m", "reprise", "portability", *_install(session, "suite"), env=_importable(session))


@nox.session(default=False)
def soak(session: nox.Session) -> None:
    """Judge implementations with fresh seeds until the time is over; findings are kept in results/soak."""
    session.run("python", "-m", "reprise", "soak", *_install(session, "suite"), env=_importable(session))


@nox.session(default=False)
def operators(session: nox.Session) -> None:
    """Judge implementations by every sample of every operator in PyTorch's database, in all places in a region."""
    rest = _install(session, "suite")
    session.run("python", "-m", "reprise", "operators")
    _conformance(session, "--profile", "exhaustive", "-k", "test_operators", *rest)


@nox.session(default=False)
def compiled(session: nox.Session) -> None:
    """Judge implementations under torch.compile, and by no other laws, on five times as many programs as conformance."""
    _conformance(session, "--profile", "long", "-k", "test_compiled", *_install(session, "suite"))


@nox.session(default=False)
def distributed(session: nox.Session) -> None:
    """Judge implementations by the laws that take ranks, two of them; as python -m reprise judge --ranks N.

    With --peers, what others ship is installed and judged instead.
    """
    peers = "--peers" in session.posargs
    rest = _install(session, "suite", *["peers-need"] * peers)
    if peers:
        _install_peers(session)
    ranks = [] if any(word.partition("=")[0] == "--ranks" for word in rest) else ["--ranks", "2"]
    session.run("python", "-m", "reprise", "judge", *ranks, *rest, env=_importable(session))


@nox.session(default=False)
def peers(session: nox.Session) -> None:
    """Judge what others ship, or --impl, as far as it can be installed here; what cannot is named, and pip says why."""
    rest = _install(session, "peers-need")
    _install_peers(session)
    chosen = any(word.partition("=")[0] == "--impl" for word in rest)
    _conformance(session, *([] if chosen else ["--peers"]), *rest)
    if not {*rest} - {OLDER}:
        _mark(session)


@nox.session
def reproduce(session: nox.Session) -> None:
    """Measure what the literature claims; the names of papers, if any, say which."""
    names = _install(session, "benches")
    session.install("pyrevolve==2.2.8", success_codes=[0, 1])  # a peer that has to be compiled; without it, its row says so
    session.run("python", "-m", "reprise", "reproduce", *names)
    _mark(session)


@nox.session(default=False)
def compare(session: nox.Session) -> None:
    """Measure time, memory and work of implementations and peers beside plain and the ideal; as python -m reprise compare."""
    options = _install(session, "benches", "peers-need")
    _install_peers(session)
    session.run("python", "-m", "reprise", "compare", *options, env=_importable(session))
    if {"--write", "--redraw"} & {*options}:
        _mark(session)


@nox.session(default=False)
def zoo(session: nox.Session) -> None:
    """Check tiny models of transformers, timm, torchvision and diffusers; --write publishes results and table."""
    options = _install(session, "zoo")
    session.run("python", "-m", "reprise", "zoo", *options)
    if "--write" in options:
        _mark(session)


@nox.session(default=False)
def published(session: nox.Session) -> None:
    """Test published scripts, and the page in a browser; then check that results were measured on the code that is there.

    With --tell, what was measured on older code is told and no failure. With --mark, nothing is tested, and generated sections
    and the page of results are made anew, with marks at what is older.
    """
    rest = _install(session, "tests")
    if "--mark" not in rest:
        session.run("python", "-m", "pytest", "tests/published", *WORKERS)
    session.run("python", "-m", "reprise", "published", *rest)


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """Build the pages in docs as a site in site/; a dead link fails it.

    It takes no torch, and nothing from a network once its packages are there. With --picture, the picture of the page of
    results is taken anew in Chromium.
    """
    if "--picture" in session.posargs:
        session.install(*nox.project.dependency_groups(PROJECT, "page"))
        session.run("python", "docs/results_picture.py")
    session.install(*nox.project.dependency_groups(PROJECT, "docs"))
    session.run("mkdocs", "build", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, types, and that generated sections and the page are those of the results."""
    _install(session, "lint")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy")
    session.run("python", "-m", "reprise", "report", "--check")
    session.run("python", "-m", "reprise", "features", "--check")
    session.run("python", "-m", "reprise", "page", "--check")
    session.run("python", "-m", "reprise", "budget", "--check")
    session.run("python", "-m", "reprise", "compare", "--check")
    session.run("python", "-m", "reprise", "compare", "--ranks", "2", "--check")
    session.run("python", "-m", "reprise", "compare", "--ranks", "4", "--check")
    session.run("python", "-m", "reprise", "overhead", "--check")
    session.run("python", "-m", "reprise", "zoo", "--check")
