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
    """Show failures, or update the generated sections of README and docs.

    Each failure comes with its reason and script.

    Args:
        show: Print the failures of this implementation.
        law: With --show: of this law only.
        results: With --show: read this results file instead of the published results.
        write: Write the sections of README.md and docs that show verdicts and laws.
        check: Fail if a section or a published script does not match the results.
    """
    from conformance.ranked_runs import catalogue
    from conformance.reports import report

    require_one({"--show NAME": show is not None, "--write": write, "--check": check})
    if (law is not None or results) and show is None:
        raise InvalidOption(f"{'--law' if law is not None else '--results'} has no effect without --show; add --show NAME")
    if show is not None:
        print(report.show(show, law, results, ROOT))
        return 0
    if write:
        report.write(ROOT)
        catalogue.write(ROOT)
        return 0
    return failed([*report.check(ROOT), *catalogue.check(ROOT)])


def page(*, check: Flag = False) -> int:
    """Make the page of results, results/index.html.

    Args:
        check: Write nothing; fail if the page does not match the published results.
    """
    from conformance.page import page

    if check:
        return failed([page.check(ROOT)])
    page.write(ROOT)
    return 0


def replay(file: ResultsFile, /, *more: ResultsFile) -> int:
    """Run the scripts of a results file again.

    Each runs in a process of its own. The status is 0 if and only if every script still shows its fault.

    Args:
        file: Results of a run, or findings of a soak.
        more: Further files.
    """
    from conformance.reproducers.replay import replay_files

    return int(not replay_files([file, *more], lambda line: print(line, flush=True)))


def merge(out: MergedFile, file: ResultsFile, /, *more: ResultsFile) -> int:
    """Merge the results of several runs, and report contradictions.

    The status is 1 if runs of the same versions have different verdicts.

    Args:
        out: File to write; with -, nothing is written.
        file: Results of a run, or a merged file.
        more: Further files.
    """
    from conformance.reports.merge import merge

    lines, agree = merge(out, [file, *more])
    print(*lines, sep="\n")
    return int(not agree)


def scripts(file: Path, /) -> None:
    """Shrink the scripts that a run has left long.

    Of published results that is every script, of others that of every unexpected verdict.

    Args:
        file: Results of a run with many failures, or that was interrupted while it shrank scripts.
    """
    from conformance.reproducers.script_files import resume

    resume(file)


def published(*, tell: Flag = False, mark: Flag = False) -> int:
    """List published results that were measured on older code.

    Each comes with the command that measures it again. The status is 1 if there are any.

    Args:
        tell: Only list them; the status is 0.
        mark: Mark them with † in all generated sections and pages.
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
        raise InvalidOption(f"{' and '.join(there)} exclude each other; give one of them")
    if not there and not or_none:
        raise InvalidOption(f"one of {', '.join(given)} is required")


def failed(faults: list[str]) -> int:
    """Print these faults on standard error, without empty ones. Returns 1 if there are any, else 0."""
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
