"""A run that fails ends with the first failure's message and remedy."""

from pathlib import Path

import yaml

from tests.pipeline.project import copy_project


def test_the_last_lines_say_what_went_wrong_first_and_what_to_do(tmp_path: Path) -> None:
    project = copy_project(tmp_path, "tests/configs/relevance.yaml")
    config = yaml.safe_load(project.config.read_text())
    config["calibrations"]["recall"]["limit"] = 99999
    project.config.write_text(yaml.safe_dump(config))
    done = project.run(
        "results/calibrations/reference/recall.parquet",
        "results/tables/diagnoses.parquet",
        check=False,
    )
    assert done.returncode != 0
    assert (project.folder / "results/tables/diagnoses.parquet").is_file(), (
        "the rest of the run goes on"
    )
    title, said, more = done.stdout.rstrip().splitlines()[-3:]
    assert title == "The first failure, in rule prepare_calibration:"
    assert said.startswith("lamina: calibrations.recall.limit: 99999"), said
    assert more == "More in logs/prepare_calibration/reference/recall.log"


def test_a_run_that_ends_well_or_is_only_planned_says_nothing_of_failures(tmp_path: Path) -> None:
    project = copy_project(tmp_path, "tests/configs/relevance.yaml")
    for arguments in (["-n"], ["results/tables/diagnoses.parquet"]):
        assert "The first failure" not in project.run(*arguments).stdout
