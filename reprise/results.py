"""Subcommands that show, check and merge what runs wrote."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from conformance.rows.option_values import InvalidOption, readable
from conformance.rows.results_file import ROOT
from reprise.values import Flag, MergedFile, ResultsFile, Text, option


def report(
    *,
    show: Text = None,
    law: Text = None,
    results: Annotated[Path | None, option(read=readable, metavar="FILE")] = None,
    write: Flag = False,
    check: Flag = False,
) -> int:
    """Show what an implementation does not keep, or make generated sections.

    With --show, each failure comes with the program that shows it.

    Args:
        show: The implementation of which failures are printed.
        law: With --show: this law only.
        results: With --show: of this run, not of the published ones.
        write: Write the sections of README.md and docs that show verdicts and laws, with marks at
            what is older than the code.
        check: Fail when a page has another section, or other scripts are written down.
    """
    from conformance.reports import report

    require_one({"--show NAME": show is not None, "--write": write, "--check": check})
    if (law is not None or results) and show is None:
        raise InvalidOption(f"{'--law' if law is not None else '--results'} has no effect without --show; add --show NAME")
    if show is not None:
        print(report.show(show, law, results, ROOT))
        return 0
    if write:
        report.write(ROOT)
        return 0
    return failed(report.check(ROOT))


def page(*, check: Flag = False) -> int:
    """Make the page of results, results/index.html.

    Args:
        check: Write nothing; fail when the file is not the page of the results.
    """
    from conformance.reports import page

    if check:
        return failed([page.check(ROOT)])
    page.write(ROOT)
    return 0


def replay(file: ResultsFile, /, *more: ResultsFile) -> int:
    """Run the scripts of results or of a soak's findings again.

    Each has a process of its own. The status is 0 exactly when every script shows its fault.

    Args:
        file: Results of a conformance run, or findings of a soak.
        more: More of them.
    """
    from conformance.reproducers.replay import replay_files

    return int(not replay_files([file, *more], lambda line: print(line, flush=True)))


def merge(out: MergedFile, file: ResultsFile, /, *more: ResultsFile) -> int:
    """Merge results of several runs, and report where they contradict.

    The status is 1 when runs of the same versions do not agree; nothing is averaged.

    Args:
        out: The merged file; - only reports.
        file: Results of a run, or a merged file.
        more: More of them.
    """
    from conformance.reports.merge import merge

    lines, agree = merge(out, [file, *more])
    print(*lines, sep="\n")
    return int(not agree)


def scripts(file: Path, /) -> None:
    """Go on making the scripts of published results small.

    Args:
        file: Published results whose run was interrupted. Those of peers need the packages
            that were judged.
    """
    from conformance.reproducers.script_files import resume

    resume(file)


def published(*, tell: Flag = False, mark: Flag = False) -> int:
    """Tell which published results were measured on older code.

    Each comes with the command that measures it anew. The status is 1 when any was.

    Args:
        tell: End with status 0 though some were.
        mark: Instead, write all generated sections and pages anew, with marks at what is older.
    """
    from benches import staleness
    from reprise.zoo import publishing

    require_one({"--tell": tell, "--mark": mark}, or_none=True)
    if mark:
        staleness.mark(ROOT)
        publishing.mark(ROOT)
        return 0
    faults, told = staleness.check(ROOT)
    status = failed(faults)
    print(told)
    return 0 if tell else status


def require_one(given: dict[str, bool], *, or_none: bool = False) -> None:
    """Raise InvalidOption unless one of these options was given."""
    there = [name for name, is_given in given.items() if is_given]
    if len(there) > 1:
        raise InvalidOption(f"{' and '.join(there)} exclude each other; accepted is one of them")
    if not there and not or_none:
        raise InvalidOption(f"one of {', '.join(given)} is required")


def failed(faults: list[str]) -> int:
    """Print these faults, empty ones apart, on standard error; 1 if there are any."""
    told = [fault for fault in faults if fault]
    sys.stderr.writelines(f"{fault}\n" for fault in told)
    return int(bool(told))


COMMANDS: Mapping[Callable[..., Any], str] = {
    report: "report --show torch-nonreentrant --law dropout_masks_are_replayed",
    page: "page",
    replay: "replay results/runs/default-cpu.jsonl",
    merge: "merge all.jsonl results/runs/one.jsonl results/runs/two.jsonl",
    published: "published --tell",
    scripts: "scripts results/peers-cpu.jsonl",
}
