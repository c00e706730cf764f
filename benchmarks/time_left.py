"""How true the time left was in runs that have ended: forecast / truth at each tenth of a run.

    python benchmarks/time_left.py [--lines] FOLDER…

`!` stands where the truth is outside of the range that a line gives.

A run is replayed from its folder: jobs, starts and ends from Snakemake's log (the latest, or the one
that is named instead of a folder), reports of work from the logs of the jobs, and results/cost.json
from the second in which its job ended. A copy of a folder must keep the times of its files (cp -a).
"""

import argparse
import re
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from lamina_workflow.runtime.progress import WORK_REPORT, Guess, JobRecord, RunProgress
from lamina_workflow.runtime.schedule import Capacity

TENTHS = range(1, 10)
_EVENT = re.compile(
    r"^\[(?P<time>\w{3} \w{3} .\d [\d:]{8} \d{4})\]\n"
    r"(?:(?:local)?rule (?P<rule>\w+):\n(?P<facts>(?:    .*\n)*)"
    r"|Finished jobid: (?P<ended>\d+) \(Rule: (?P<ended_rule>\w+)\)"
    r"|Job (?P<with_message>\d+): )",
    re.MULTILINE,
)
_COUNT = re.compile(r"^(\w+) +(\d+)$", re.MULTILINE)


@dataclass
class RecordedJob:
    """A job of a run that has ended, in seconds of the epoch."""

    record: JobRecord
    inputs: tuple[str, ...]
    started: float
    ended: float = 0.0

    def report_until(self, now: float) -> str:
        """What its log said at that second of its work."""
        if self.record.log is None or not self.record.log.is_file():
            return ""
        reports = list(WORK_REPORT.finditer(self.record.log.read_text(errors="replace")))
        if not reports:
            return ""
        # The last report is written when the work ends.
        begun = min(self.record.log.stat().st_mtime, self.ended) - float(reports[-1][2])
        known = [report[0] for report in reports if begun + float(report[2]) <= now]
        return "\n".join(known)


@dataclass
class RecordedRun:
    """A run that has ended."""

    folder: Path
    jobs: dict[int, RecordedJob]
    counts: Counter[str]
    cores: int

    @classmethod
    def read(cls, source: Path) -> "RecordedRun":
        """The run of a log of Snakemake, or the latest one of a folder."""
        log = source
        if source.is_dir():
            log = sorted((source / ".snakemake/log").glob("*.log"))[-1]
        folder = log.parents[2]
        text = log.read_text(encoding="utf-8")
        jobs: dict[int, RecordedJob] = {}
        for event in _EVENT.finditer(text):
            second = time.mktime(time.strptime(event["time"]))
            if event["with_message"]:  # of which Snakemake writes no facts
                jobs[int(event["with_message"])] = RecordedJob(JobRecord(""), (), second)
                continue
            if event["ended"]:
                ended_job = jobs[int(event["ended"])]
                ended_job.ended = second
                ended_job.record.rule = event["ended_rule"]
                continue
            facts = dict(re.findall(r"^    (\w+): (.*)$", event["facts"], re.MULTILINE))
            record = JobRecord(
                event["rule"],
                tuple(facts.get("output", "").split(", ")),
                folder / facts["log"] if "log" in facts else None,
                computes="gpu=" in facts.get("resources", ""),
                threads=int(facts.get("threads", 1)),
            )
            inputs = tuple(facts.get("input", "").split(", "))
            jobs[int(facts["jobid"])] = RecordedJob(record, inputs, second)
        writers = {output: number for number, job in jobs.items() for output in job.record.outputs}
        for job in jobs.values():
            job.record.needs = frozenset(writers[name] for name in job.inputs if name in writers)
        table = text[text.index("Job stats:") :].split("\n\n")[0]
        counts = Counter({rule: int(number) for rule, number in _COUNT.findall(table)})
        counts["total"] = len(jobs)  # of a run that was stopped, those that it began
        cores = re.search(r"^Provided cores: (\d+)", text, re.MULTILINE)
        return cls(folder, jobs, counts, int(cores[1]) if cores else 1)

    @property
    def begun(self) -> float:
        return min(job.started for job in self.jobs.values())

    @property
    def ended(self) -> float:
        return max(job.ended for job in self.jobs.values())

    def replay(self, now: float, scratch: Path) -> RunProgress:
        """What a run knew at a second."""
        records: dict[int, JobRecord] = {}
        for number, job in self.jobs.items():
            recorded = job.record
            log = scratch / f"{number}.log"
            log.write_text(job.report_until(now))
            records[number] = replace(recorded, log=log, threads=0)
        cost = scratch / "cost.json"
        cost.unlink(missing_ok=True)
        forecasting = [job for job in self.jobs.values() if job.record.rule == "estimate_cost"]
        if not forecasting or forecasting[0].ended <= now:
            shutil.copy(self.folder / "results/cost.json", cost)
        machine = Capacity(self.cores)
        progress = RunProgress(Counter(self.counts), records, cost, machine, self.begun)
        for number, job in self.jobs.items():
            if job.started <= now:
                progress.start(number, job.record.rule, job.started, job.record.threads)
            if job.ended <= now:
                progress.finish(number, job.ended)
                progress.n_done += 1
        return progress


def describe_guess(left: Guess | None, truth: float) -> str:
    """Forecast / truth, with ! where the truth is outside of the range."""
    if left is None:
        return "–"
    ratio = left.seconds / truth
    is_outside = not 1 / left.factor <= ratio <= left.factor
    return f"{ratio:.2f}{'!' if is_outside else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--lines", action="store_true", help="print the lines of the run as well")
    options = parser.parse_args()
    print(f"{'run':<16}{'seconds':>8}", *(f"{10 * tenth:>5} %" for tenth in TENTHS), sep="")
    for source in options.runs:
        run = RecordedRun.read(source)
        seconds = run.ended - run.begun
        ratios: list[str] = []
        lines: list[str] = []
        with tempfile.TemporaryDirectory() as scratch:
            for tenth in TENTHS:
                now = run.begun + tenth / 10 * seconds
                progress = run.replay(now, Path(scratch))
                ratios.append(describe_guess(progress.guess_left(now), run.ended - now))
                lines.append(f"    {(run.ended - now) / 60:6.1f} min left: {progress.line(now)}")
        print(f"{run.folder.name:<16}{seconds:>8.0f}", *(f"{ratio:>7}" for ratio in ratios), sep="")
        if options.lines:
            print("\n".join(lines))


if __name__ == "__main__":
    main()
