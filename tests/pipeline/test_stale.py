"""Stale means stale: dry runs after a full run say exactly which jobs a change makes necessary."""

import pytest

from tests.pipeline.project import Job, Project, rules_of, wildcard_values

pytestmark = pytest.mark.slow

# What follows from any new row, and from what is drawn and written of it.
REPORTING = {"default", "collect_facts", "render_report", "check_refusals"}
COMPARING = {"compare_metrics", "compare_tasks", "compare_selectors"}
GATHERING = REPORTING | COMPARING | {"gather_table", "gather_jobs", "build_database", "plot_figure"}
# Its jobs measure all variants of a model, whatever the calibration.
WHOLE_MODEL = {"benchmark_efficiency"}
LOADING_MODELS = {
    "capture_activations",
    "sweep_units",
    "fit_patch",
    "heal_variant",
    "benchmark_task",
    "benchmark_perplexity",
    "benchmark_efficiency",
}
BEFORE_REPAIRS = {"sweep_units", "capture_activations", "prune_step", "prepare_calibration"}
NEW_CODE = "\nEDITED = True\n"


def base_sweeps(jobs: list[Job]) -> set[str]:
    """The stale sweeps of the base model, which selectors share."""
    selectors = wildcard_values(jobs, "sweep_units", "selector")
    return {selector for selector in selectors if selector.startswith("base/")}


def test_a_second_run_has_nothing_to_do(finished: Project) -> None:
    assert finished.stale() == []


def test_touching_any_file_reruns_nothing(finished: Project) -> None:
    for name in ("resources", "src", "workflow", "rules", "sql", "config", "envs"):
        for path in (finished.folder / name).rglob("*"):
            if path.is_file():
                path.touch()
    assert finished.stale() == []


# Changes of the configuration.


def test_a_new_limit_reruns_that_calibration_and_what_follows_only(restored: Project) -> None:
    restored.configure({"calibrations": {"recall": {"limit": 41}}})

    stale_jobs = restored.stale()

    not_of_a_calibration = GATHERING | WHOLE_MODEL
    measuring = [job for job in stale_jobs if job.rule not in not_of_a_calibration]
    measured = {"prepare_calibration", "sweep_units", "fit_patch", "benchmark_task"}
    assert measured <= rules_of(measuring)
    assert {job.wildcards["calibration"] for job in measuring} == {"recall"}


def test_a_new_task_adds_its_jobs_and_reruns_only_what_gathers(restored: Project) -> None:
    restored.configure({"benchmarks": {"tasks": {"microworld_facts": {"limit": 50}}}})

    measuring = [job for job in restored.stale() if job.rule not in GATHERING]

    assert rules_of(measuring) == {"prepare_task", "check_overlap", "benchmark_task"}
    assert {job.wildcards["task"] for job in measuring} == {"microworld_facts"}


def test_an_option_that_is_written_out_with_its_default_reruns_nothing(restored: Project) -> None:
    restored.configure({"repairs": {"ghost": {"ridge": "validated", "bias": False}}})
    restored.configure({"selectors": {"cosine": {"combine": "mean"}}})
    assert restored.stale() == []


def test_a_new_option_of_a_repair_reruns_its_patches_and_what_follows(restored: Project) -> None:
    restored.configure({"repairs": {"ghost": {"bias": True}}})

    stale_jobs = restored.stale()

    assert rules_of(stale_jobs) - GATHERING == {
        "fit_patch",
        "heal_variant",
        "benchmark_task",
        "benchmark_perplexity",
        "benchmark_efficiency",
    }
    assert wildcard_values(stale_jobs, "heal_variant", "repair") == {"ghost"}


def test_another_way_of_scoring_reruns_plans_and_no_sweep_of_the_base_model(
    restored: Project,
) -> None:
    restored.configure({"calibrations": {"recall": {"score": "acc"}}})

    stale_jobs = restored.stale()

    assert {"score_relevance", "prune_step"} <= rules_of(stale_jobs)
    assert not rules_of(stale_jobs) & {"prepare_calibration", "capture_activations"}
    assert not base_sweeps(stale_jobs)


def test_a_diagnosis_adds_its_job_and_a_table(restored: Project) -> None:
    restored.configure({"diagnoses": {"spread": {"kind": "variance"}}})
    restored.configure({"studies": {"maps": {"diagnoses": ["spread"]}}})

    stale_jobs = restored.stale()

    assert rules_of(stale_jobs) - GATHERING == {"diagnose_layers"}
    assert wildcard_values(stale_jobs, "gather_table", "table") == {"diagnoses"}


# Changes of the code.


@pytest.mark.parametrize(
    "file",
    [
        "src/lamina/repairs/methods/ghost.py",
        "src/lamina/engine/sweep.py",
        "src/lamina/store/parquet.py",
        "src/lamina/models/surgery.py",
        "workflow/scripts/sweep_units.py",
        "workflow/scripts/gather_table.py",
    ],
)
def test_a_comment_reruns_nothing(restored: Project, file: str) -> None:
    restored.append(file, "\n# A remark.\n")
    assert restored.stale() == []


@pytest.mark.parametrize(
    "file",
    [
        "src/lamina/errors.py",
        "src/lamina/paths.py",
        "src/lamina/variant.py",
        "src/lamina/evaluation/written_removals.py",
        "src/lamina/selection/strategies/deepest.py",
        "src/lamina_workflow/checks/load.py",
    ],
)
def test_what_computes_no_number_of_the_study_reruns_nothing(restored: Project, file: str) -> None:
    """Messages, paths, checks of the configuration, and methods that no entry names."""
    restored.append(file, NEW_CODE)
    assert restored.stale() == []


def test_editing_a_repair_reruns_its_patches_and_what_follows(restored: Project) -> None:
    restored.append("src/lamina/repairs/methods/ghost.py", NEW_CODE)

    stale_jobs = restored.stale()

    assert {"fit_patch", "benchmark_task"} <= rules_of(stale_jobs)
    assert not rules_of(stale_jobs) & BEFORE_REPAIRS
    assert wildcard_values(stale_jobs, "heal_variant", "repair") == {"ghost"}


def test_editing_a_healing_reruns_its_variants(restored: Project) -> None:
    restored.append("src/lamina/healing/lora.py", NEW_CODE)

    stale_jobs = restored.stale()

    assert "heal_variant" in rules_of(stale_jobs)
    assert not rules_of(stale_jobs) & (BEFORE_REPAIRS | {"fit_patch"})
    assert wildcard_values(stale_jobs, "benchmark_task", "calibration") == {"recall"}


def test_editing_a_strategy_reruns_its_plans_and_what_follows(restored: Project) -> None:
    restored.append("src/lamina/selection/strategies/iterative.py", NEW_CODE)

    stale_jobs = restored.stale()

    assert {"prune_step", "benchmark_task"} <= rules_of(stale_jobs)
    assert wildcard_values(stale_jobs, "heal_variant", "healing") == {"lora"}
    assert not base_sweeps(stale_jobs)


def test_editing_a_metric_reruns_the_plans_that_go_by_it(restored: Project) -> None:
    restored.append("src/lamina/relevance/metrics/streams.py", NEW_CODE)

    stale_jobs = restored.stale()

    assert "prune_step" in rules_of(stale_jobs)
    assert wildcard_values(stale_jobs, "fit_patch", "selector") == {"cosine"}
    assert not base_sweeps(stale_jobs)


def test_editing_a_metric_that_no_plan_reads_reruns_scores_and_the_report(
    restored: Project,
) -> None:
    restored.append("src/lamina/relevance/metrics/outputs.py", NEW_CODE)

    stale_jobs = restored.stale()

    assert "score_relevance" in rules_of(stale_jobs)
    assert rules_of(stale_jobs) <= GATHERING | {"score_relevance"}
    assert wildcard_values(stale_jobs, "gather_table", "table") == {"relevance"}


# Tables, views, figures, the report.


@pytest.mark.parametrize(
    ("module", "table"),
    [
        ("sweep", "sweeps"),
        ("prune", "plans"),
        ("benchmark", "benchmarks"),
        ("repair", "patches"),
        ("prepare", "models"),
    ],
)
def test_a_new_column_reruns_its_table_and_the_report(
    restored: Project, module: str, table: str
) -> None:
    new_column = f'{table.upper()}.columns["made_up"] = Column("string", "Nothing.")\n'
    restored.append(f"src/lamina/tables/{module}.py", new_column)

    stale_jobs = restored.stale()

    assert rules_of(stale_jobs) <= GATHERING
    assert wildcard_values(stale_jobs, "gather_table", "table") == {table}


def test_a_new_view_reruns_figures_and_the_report(restored: Project) -> None:
    new_view = "CREATE OR REPLACE VIEW made_up AS SELECT * FROM models;\n"
    restored.append("sql/views.sql", new_view)
    before_views = {"gather_table", "compare_metrics", "compare_tasks"}
    assert rules_of(restored.stale()) == GATHERING - before_views


def test_editing_a_figure_redraws_it_alone(restored: Project) -> None:
    restored.append("src/lamina_workflow/report/figures/training_curves.py", NEW_CODE)

    stale_jobs = restored.stale()

    assert rules_of(stale_jobs) == REPORTING - {"collect_facts"} | {"plot_figure"}
    assert wildcard_values(stale_jobs, "plot_figure", "figure") == {"training_curves"}


def test_a_new_version_of_lamina_reruns_the_report(restored: Project) -> None:
    restored.append("src/lamina/version.py", 'VERSION = "9.9.9"\n')
    assert rules_of(restored.stale()) == REPORTING


# Registries and packages.


def test_a_new_family_reruns_nothing(restored: Project) -> None:
    new_family = 'FAMILIES["made_up"] = FamilyOptions(alibi=True)\n'
    restored.append("src/lamina/models/families.py", new_family)
    assert restored.stale() == []


def test_the_entry_of_a_models_family_reruns_what_loads_the_model(restored: Project) -> None:
    """In one run, although the check of the model, on which all this waits, is stale too."""
    new_entry = 'FAMILIES["llama"] = FamilyOptions(alibi=True)\n'
    restored.append("src/lamina/models/families.py", new_entry)

    stale_jobs = restored.stale()

    assert rules_of(stale_jobs) >= LOADING_MODELS
    assert not rules_of(stale_jobs) & {"prepare_model", "prepare_calibration", "prepare_task"}


@pytest.mark.parametrize("package", ["ruff", "matplotlib", "duckdb", "snakemake", "pydantic"])
def test_a_new_version_of_a_package_that_computes_nothing_reruns_nothing(
    restored: Project, package: str
) -> None:
    restored.edit("requirements.lock", f"\n{package}==", f"\n{package}==99.")
    assert restored.stale() == []


def test_a_new_version_of_peft_reruns_healings(restored: Project) -> None:
    restored.edit("requirements.lock", "\npeft==", "\npeft==99.")

    stale_jobs = restored.stale()

    assert "heal_variant" in rules_of(stale_jobs)
    assert not rules_of(stale_jobs) & (BEFORE_REPAIRS | {"fit_patch"})


def test_a_new_version_of_torch_reruns_what_computes_with_it(restored: Project) -> None:
    restored.edit("requirements.lock", "\ntorch==", "\ntorch==99.")
    assert rules_of(restored.stale()) >= LOADING_MODELS


def test_a_change_that_is_undone_leaves_nothing_stale(restored: Project) -> None:
    restored.configure({"seed": 1})
    assert rules_of(restored.stale()) >= {"prepare_calibration", "score_relevance", "fit_patch"}
    restored.configure({"seed": 0})
    assert restored.stale() == []
