"""From a checked description to a run of processes: its folder, and where on this host each thing is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import grpo_stack
from grpo_stack import description, occupancy, processes, run_folder, spec, words
from grpo_stack.demo import SUMS
from grpo_stack.description import Description
from grpo_stack.local_run import Run
from grpo_stack.plan import StackPlan
from grpo_stack.processes import Place
from grpo_stack.spec import StackSpec

_LIBRARIES = ("site-packages", "dist-packages")


def write(described: Description, planned: StackPlan, project: str) -> Run:
    """Make the run's folder, with the description and the command lines in it, and say what to run.

    HostError if the run is running already, in whichever runtime; nothing of it is touched then.
    """
    directory = described.directory.absolute()
    outputs = Path(description.absolute(described.spec.outputs, directory))
    folder = outputs / words.literal(described.spec.run)
    occupancy.require_free(folder, with_docker=False)
    found = processes.programs(planned, _place(directory, folder))
    record = {description.FILE: description.dump(described), processes.RECORD: processes.record(found) + "\n"}
    run_folder.begin(folder, record)
    return Run(project, folder, found, fetches=not _all_here(described.spec))


def _all_here(stack: StackSpec) -> bool:
    """Whether model and dataset are on this host, so that nothing is fetched: then 15 s of imports need not come first."""
    dataset = stack.data.dataset
    return spec.is_path(stack.model) and (spec.is_file(dataset) or dataset == SUMS)


def _place(directory: Path, folder: Path) -> Place:
    above = Path(grpo_stack.__file__).resolve().parent.parent
    return Place(
        directory=str(directory),
        run=str(folder),
        python=sys.executable,
        modules="" if above.name in _LIBRARIES else str(above),
        environment=dict(os.environ),
        caller=str(Path.cwd()),
    )
