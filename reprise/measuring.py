"""Subcommands that measure time, memory and work, and reproduce what papers claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from conformance.rows.option_values import InvalidOption
from conformance.rows.results_file import ROOT
from reprise.results import failed, require_one
from reprise.values import Device, File, Flag, Names, Positive, Ranks, Rounds, option

Model = Literal["attention", "fused-attention", "resnet", "resnet50", "small-layers", "lstm", "experts"]
Workload = Literal["chain", Model, "sweeps"]  # of benches.models.workloads
Size = Annotated[Literal["S", "M", "L", "XL"], option()]
Paper = Literal["chen2016", "griewank2000", "rotor2019", "dtr2021", "korthikanti2022", "torch_budget", "nested90105", "offload"]


def compare(
    *,
    impl: Names = (),
    workload: Annotated[tuple[Workload, ...], option()] = (),
    size: Size = "S",
    device: Device = "cpu",
    budget: Annotated[tuple[str, ...], option(metavar="BYTES|FRACTION")] = (),
    compiled: Flag = False,
    backend: Annotated[str | None, option(metavar="NAME")] = None,
    rounds: Rounds = 15,
    ranks: Ranks = None,
    results: File = None,
    write: Flag = False,
    redraw: Flag = False,
    check: Flag = False,
) -> int:
    """Measure time, memory and work of implementations on workloads.

    Compares with plain training and with the least that checkpointing can cost.
    On CUDA, the status is 1 if nested misses a limit.

    Args:
        impl: Measure this one: a contender, an installed name, or pkg.mod:attr; repeatable. All by default.
        workload: Measure on this one; repeatable. All by default. sweeps: curves over saved tensors and depth.
        size: Model size. S, M: for a CPU; L: for a GPU; XL: count bytes and FLOPs without running kernels.
        device: Device to run on: cpu, cuda, cuda:1, ...; fake: count bytes and FLOPs without running kernels.
        budget: Add the fastest plan within this much memory, in bytes or as a fraction of plain's; repeatable.
        compiled: Measure steps under torch.compile, beside plain's.
        backend: With --compiled: the backend of torch.compile; inductor by default.
        rounds: Number of rounds of each timing.
        ranks: Measure a decoder on this many ranks, 2 or 4, and predict it for 8 to 1,024 devices.
        results: Write the results to this file.
        write: Publish a complete run: results, plots, and the table in docs/comparison.md.
        redraw: Measure nothing; draw plots, table and page again from the published results.
        check: Measure nothing; fail if a page does not show the results.
    """
    require_one({"--write": write, "--redraw": redraw, "--check": check}, or_none=True)
    if ranks is not None:
        given = {"--workload": workload, "--size": size != "S", "--device": device != "cpu", "--budget": budget}
        given |= {"--compiled": compiled, "--backend": backend, "--redraw": redraw}
        return _compare_ranks(ranks, impl, rounds, results, given, write=write, check=check)
    limited = {"--impl": impl, "--workload": workload, "--budget": budget, "--backend": backend, "--results": results}
    _require_complete("--write" if write else "--redraw" if redraw else "--check" if check else "", limited)
    choice: dict[str, Any] = {"implementations": impl, "workloads": workload, "size": size, "device": device, "rounds": rounds}
    if compiled:
        eager = {"--budget": budget, "--redraw": redraw, "--check": check}
        return _compare_compiled(choice | ({"backend": backend} if backend else {}), results, write, eager)
    if backend is not None:
        raise InvalidOption("--backend has no effect without --compiled; add --compiled")
    return _compare_published(redraw) if redraw or check else _compare_eager(choice | {"budgets": budget}, results, write)


def _compare_eager(choice: Mapping[str, Any], results: Path | None, write: bool) -> int:
    """``compare`` without ``--compiled``. Raises ValueError if pytest cannot run."""
    from benches.compare import command

    try:
        return int(not command.compare(command.Choice(**choice), path=results, publish=write, root=ROOT))
    except RuntimeError as error:
        raise ValueError(str(error)) from error


def _compare_published(redraw: bool) -> int:
    """Draw plots and tables again from the published results, or check that pages match them."""
    from benches.compare import command, compiled_report, report

    if redraw:
        command.redraw(ROOT)
        return 0
    return failed([report.check(ROOT), compiled_report.SECTION.check(ROOT)])


def _compare_compiled(choice: Mapping[str, Any], results: Path | None, write: bool, eager: Mapping[str, object]) -> int:
    """``compare --compiled``. Raises InvalidOption for options that are about eager steps."""
    if given := [name for name, value in eager.items() if value]:
        raise InvalidOption(f"--compiled does not take {given[0]}; leave out {', '.join(given)}")
    if "sweeps" in choice["workloads"]:
        raise InvalidOption("--compiled: workload is 'sweeps', curves of eager steps; accepted are the other workloads")
    if choice["size"] == "XL":
        raise InvalidOption("--compiled: size is 'XL', which runs no kernels, but compiled steps run; accepted are S, M and L")
    from benches.compare import compiled as bench

    bench.compare(bench.Choice(**choice), path=results, publish=write, root=ROOT)
    return 0


def _require_complete(action: str, limited: Mapping[str, object]) -> None:
    """Raise InvalidOption if an action that is about a complete run was given with options that limit it."""
    if partial := [name for name, given in limited.items() if given and action]:
        raise InvalidOption(f"{action} is about a complete run; leave out {', '.join(partial)}")


def _compare_ranks(
    ranks: int,
    impl: tuple[str, ...],
    rounds: int,
    results: Path | None,
    given: Mapping[str, object],
    *,
    write: bool,
    check: bool,
) -> int:
    from benches.ranks import command, report

    if refused := [name for name, value in given.items() if value]:
        raise InvalidOption(
            f"{refused[0]} cannot be given with --ranks, which measures a decoder on the CPU with gloo; leave it out"
        )
    _require_complete("--write" if write else "--check" if check else "", {"--impl": impl, "--results": results})
    choice = command.Choice(ranks, impl, rounds)
    if check:
        return failed([report.section(ranks).check(ROOT)])
    return int(not command.compare(choice, path=results, publish=write, root=ROOT))


def overhead(
    *,
    memory: Flag = False,
    growth: Flag = False,
    profile: Flag = False,
    bytes: Flag = False,
    scale: Positive = 1.0,
    write: Flag = False,
    check: Flag = False,
) -> int:
    """Measure what nested and native add to the work they repeat.

    Compares with what PyTorch's checkpoint adds. The status is 1 if one of them misses a limit.

    Args:
        memory: Only the memory for each saved tensor.
        growth: Only what must not grow with size, and how deep regions can nest.
        profile: Only the overhead by ingredient, from minimal checkpoints up to nested and native.
        bytes: Only peaks of memory, next to their predictions.
        scale: Multiply the number of rounds by this.
        write: Measure everything and publish it: results, and the tables in docs/overhead.md.
        check: Measure nothing; fail if the tables in docs/overhead.md do not match the results.
    """
    given = {"memory": memory, "growth": growth, "profile": profile, "bytes": bytes}
    parts = [name for name, is_given in given.items() if is_given]
    if write and (parts or check or scale < 1):
        raise InvalidOption(
            f"--write publishes a complete run; leave out {', '.join(f'--{name}' for name in given)} and --check, "
            f"and give a --scale of 1 or more, not {scale:g}"
        )
    from benches.overhead import command, tables

    if check:
        return failed([tables.SECTION.check(ROOT)])
    return int(not command.run_bench(parts=parts, scale=scale, publish=write, root=ROOT))


def budget(*, write: Flag = False, check: Flag = False) -> int:
    """Train a network within memory budgets that plain training exceeds.

    The status is 1 if plain training fits a budget, or a plan does not.

    Args:
        write: Put the table into docs/comparison.md, too.
        check: Measure nothing; fail if the table in docs/comparison.md does not match the results.
    """
    from benches.budget import command

    require_one({"--write": write, "--check": check}, or_none=True)
    if check:
        return failed([command.SECTION.check(ROOT)])
    try:
        command.run_bench(publish=write, root=ROOT)
    except ValueError as error:  # a budget that is not as the example says, or a table that cannot be published
        return failed([f"reprise budget: {error}"])
    return 0


def zoo(*, write: Flag = False, check: Flag = False) -> int:
    """Check tiny models of transformers, timm, torchvision and diffusers.

    Each is built with random weights and its package's own checkpointing. The status is 1 if one cannot be checked, a budget
    is not kept, a predicted peak is off by more than 5%, or a step within a budget is slower than one with all regions
    checkpointed, in three of four rounds or more.

    Args:
        write: Publish results/zoo-cpu.json, and the table of docs/zoo.md.
        check: Check no model; fail if the tables in docs/zoo.md do not match the results.
    """
    from reprise.zoo import publishing

    require_one({"--write": write, "--check": check}, or_none=True)
    if check:
        return failed([publishing.SECTION.check(ROOT)])
    return failed(publishing.run_zoo(publish=write, root=ROOT))


def layer(*, device: Device = "cuda", rounds: Rounds = 15, write: Flag = False) -> int:
    """Measure time and memory of a transformer layer on CUDA.

    Once with nothing recomputed, once with the attention core, once with all of it.

    Args:
        device: CUDA device: cuda, cuda:1, ...
        rounds: Number of rounds of the timing.
        write: Publish results/layer-cuda.json instead of writing to results/runs.
    """
    from benches.layer import run_bench

    return int(not run_bench(device=device, rounds=rounds, publish=write, root=ROOT))


def offload(
    *,
    device: Device = "cuda",
    workload: Annotated[Model, option()] = "fused-attention",
    size: Annotated[Literal["S", "M", "L"], option()] = "L",
    rounds: Rounds = 15,
    write: Flag = False,
) -> int:
    """Measure what OffloadModel costs on CUDA.

    Compares copies that overlap with computation to copies that the host waits for.

    Args:
        device: CUDA device: cuda, cuda:1, ...
        workload: The model.
        size: The size of the model.
        rounds: Number of rounds of the timing.
        write: Publish results/offload-DEVICE.json instead of writing to results/runs.
    """
    from benches.offload import run_bench

    options = {"device": device, "workload": workload, "size": size, "rounds": rounds}
    return int(not run_bench(**options, publish=write, root=ROOT))  # type: ignore[arg-type]


def reproduce(*papers: Paper, output: File = None) -> int:
    """Measure what papers claim.

    Prints claims next to measurements and writes them to results/papers.
    The status is 1 if a claim that must come out exactly does not, or a trend goes the other way.

    Args:
        papers: The papers; all by default.
        output: Directory for the results; by default results/papers, or results/runs with uncommitted changes.
    """
    from benches.reproduce import reproduce_papers

    return int(not reproduce_papers(papers, output))


COMMANDS: Mapping[Callable[..., Any], str] = {
    compare: "compare --impl nested --impl mypkg.mod:checkpoint --workload attention",
    reproduce: "reproduce chen2016 rotor2019",
    overhead: "overhead --profile",
    budget: "budget",
    zoo: "zoo",
    layer: "layer --device cuda",
    offload: "offload --workload lstm --size M",
}
