"""Snakemake's logger plugin `lamina`: the progress of a run, and nothing else unless a job fails.

On a terminal, one line is overwritten again and again. In a pipe there is one line per minute and
one for each tenth of the run.
"""

import logging
import re
import shutil
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, TextIO

from snakemake.logging import DefaultFilter, DefaultFormatter
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from lamina_workflow.runtime.progress import JobRecord, RunProgress
from lamina_workflow.runtime.schedule import Capacity

# Snakemake's own messages about a run that succeeds; all other messages are shown.
_COUNTED_EVENTS = {
    LogEvent.JOB_INFO,
    LogEvent.JOB_FINISHED,
    LogEvent.PROGRESS,
    LogEvent.RUN_INFO,
}
_QUIET_EVENTS = {
    LogEvent.JOB_STARTED,
    LogEvent.WORKFLOW_STARTED,
    LogEvent.RESOURCES_INFO,
    LogEvent.GROUP_INFO,
    LogEvent.SHELLCMD,
}
_QUIET_MESSAGES = re.compile(
    "Building DAG|Select jobs|Using shell: |Conda environments: ignored|host: |Config file "
    "|Singularity containers: |Group jobs: inactive|Removing temporary output"
    "|Assuming unrestricted shared filesystem|Nothing to be done|Complete log|Elapsed time"
)
# Messages that the report of the first failure repeats at the end, in the job's own words.
_REPEATED_MESSAGES = re.compile(
    "(RuleException:\\n)?CalledProcessError|WorkflowError:\\nAt least one job did not complete"
    "|Exiting because a job"
)
_LOOK_SECONDS = 5.0  # between two looks at the jobs while none starts or ends
_LINE_SECONDS = 60.0  # between two lines in a pipe, at most


class LogHandler(LogHandlerBase):
    """Writes progress to standard error, and every warning and error in Snakemake's own words.

    For a failed job it only says which one. `lamina_workflow.runtime.failures` ends the run with
    the message of the first failed job.
    """

    writes_to_stream = has_filter = has_formatter = True
    writes_to_file = needs_rulegraph = False

    def __post_init__(self) -> None:
        settings = self.common_settings
        self.stream: TextIO = sys.stdout if settings.stdout else sys.stderr
        self.progress = RunProgress()
        self.workflow: Any = None  # the one that this process runs
        self.drawn_line = ""  # the line that is on the terminal
        self.is_stopped = False  # by Ctrl-C
        self.last_tenth = -1  # of the run, when the last line was written to a pipe
        self.names_jobs = False  # whether a line in a pipe has named jobs
        self.last_written = 0.0  # time of that line
        self._is_over = threading.Event()
        self.addFilter(
            DefaultFilter(
                settings.quiet,
                settings.debug_dag,
                settings.verbose,
                settings.dryrun,
                settings.printshellcmds,
            )
        )
        self.setFormatter(DefaultFormatter(settings.quiet, settings.show_failed_logs))

    def follow(self, workflow: Any, cost: Path, machine: Capacity | None) -> None:
        """Show the jobs of this workflow; `make plan` writes the file `cost`, which may be missing.

        machine: The machine that runs the jobs; None if they run on a cluster.
        """
        self.workflow = workflow
        self.progress.cost = cost
        self.progress.machine = machine

    def emit(self, record: logging.LogRecord) -> None:
        """Count a record, or show it."""
        try:
            self._handle(record)
        except Exception:
            self.handleError(record)

    def _handle(self, record: logging.LogRecord) -> None:
        event = record.__dict__.get("event")
        text = str(record.msg or "")
        if text.startswith("Terminating processes"):
            self.is_stopped = True
            self._write("Stopping: jobs that are under way are ended.")
        elif event == LogEvent.JOB_ERROR and not self.common_settings.verbose:
            self._name_failed_job(record.__dict__)
        elif _REPEATED_MESSAGES.match(text) and not self.common_settings.verbose:
            return
        elif self._is_shown(record, event, text):
            self._write(self.format(record))
        elif event in _COUNTED_EVENTS:
            self._count(record.__dict__, record.created)

    def _name_failed_job(self, fields: dict[str, Any]) -> None:
        if not self.is_stopped:
            outputs = ", ".join(map(str, fields["output"]))
            self._write(f"{fields['rule_name']} failed: {outputs}")

    def _is_shown(self, record: logging.LogRecord, event: LogEvent | None, text: str) -> bool:
        """Whether a record is shown in Snakemake's words."""
        settings = self.common_settings
        if record.levelno >= logging.WARNING or settings.dryrun or settings.verbose:
            return True
        if event in _COUNTED_EVENTS or event in _QUIET_EVENTS:
            return False
        return bool(text.strip()) and not _QUIET_MESSAGES.match(text)

    def close(self) -> None:
        """Leave the last state on the terminal."""
        self._is_over.set()
        self.stream.write("\n" if self.drawn_line else "")
        self.drawn_line = ""
        super().close()

    def _count(self, fields: dict[str, Any], now: float) -> None:
        """Count what Snakemake reports about the run or a job."""
        event = fields["event"]
        progress = self.progress
        if event == LogEvent.RUN_INFO:
            self._begin(fields["stats"], now)
        elif event == LogEvent.JOB_INFO:
            progress.start(fields["jobid"], fields["rule_name"], now, fields["threads"])
        elif event == LogEvent.JOB_FINISHED:
            progress.finish(fields["job_id"], now)
        else:
            progress.n_done = fields["done"]
            progress.job_counts["total"] = fields["total"]
        if self.stream.isatty() or event in (LogEvent.RUN_INFO, LogEvent.PROGRESS):
            self._show_progress(now)

    def _begin(self, job_counts: dict[str, int], now: float) -> None:
        """Record the jobs of a run that begins now."""
        self.progress.job_counts = Counter(job_counts)
        self.progress.begun = now
        if self.workflow is not None:
            graph = self.workflow.dag
            for job in graph.needrun_jobs(exclude_finished=False):
                self.progress.jobs[job.jobid] = JobRecord(
                    job.rule.name,
                    tuple(map(str, job.output)),
                    Path(job.log[0]) if job.log else None,
                    computes="gpu" in job.rule.resources,
                    needs=frozenset(needed.jobid for needed in graph.dependencies[job]),
                )
        threading.Thread(target=self._write_meanwhile, daemon=True).start()

    def _write_meanwhile(self) -> None:
        """Write lines even while no job starts or ends; the first one names the first jobs."""
        while not self._is_over.wait(_LOOK_SECONDS):
            with self.lock or threading.RLock():
                if not self._is_over.is_set() and self.progress.running:
                    self._show_progress(time.time())

    def _show_progress(self, now: float) -> None:
        tenth = self.progress.n_done * 10 // max(1, self.progress.job_counts["total"])
        line = self.progress.line(now)
        if self.stream.isatty():
            self._draw(line)
        elif (
            tenth > self.last_tenth
            or (self.progress.running and not self.names_jobs)
            or now - self.last_written >= _LINE_SECONDS
        ):
            self.last_tenth = tenth
            self.names_jobs = self.names_jobs or bool(self.progress.running)
            self.last_written = now
            self._write(line)

    def _draw(self, line: str, above: str = "") -> None:
        """Overwrite the line that is on the terminal, and write lines above it."""
        cleared = f"\r{' ' * len(self.drawn_line)}\r" if self.drawn_line else ""
        self.drawn_line = line[: shutil.get_terminal_size().columns - 1]
        self.stream.write(cleared + above + self.drawn_line)
        self.stream.flush()

    def _write(self, text: str) -> None:
        """Write a text above the line that is on the terminal."""
        self._draw(self.drawn_line, f"{text}\n")
