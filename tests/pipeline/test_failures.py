"""A run that fails ends with the first failure's message and remedy."""

from pathlib import Path

from tests.pipeline.project import copy_project

DIAGNOSES = "results/tables/diagnoses.parquet"


def test_the_last_lines_say_what_failed_first_and_what_to_do(tmp_path: Path) -> None:
    project = copy_project(tmp_path, "tests/configs/relevance.yaml")
    project.configure({"calibrations": {"recall": {"limit": 99999}}})

    run = project.run("results/calibrations/reference/recall.parquet", DIAGNOSES, check=False)

    assert run.returncode != 0
    assert (project.folder / DIAGNOSES).is_file(), "jobs that need nothing of it go on"
    title, message, log = run.stdout.rstrip().splitlines()[-3:]
    assert title == "The first failure, in rule prepare_calibration:"
    assert message.startswith("lamina: calibrations.recall.limit: 99999")
    assert log == "More in logs/prepare_calibration/reference/recall.log"
