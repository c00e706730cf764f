"""Stale means stale: real dry runs after a full run say exactly which jobs a change makes necessary."""

import pytest

from tests.pipeline.project import Job, Project

pytestmark = pytest.mark.slow

# What follows from any new row, and from what is drawn and written of it.
REPORTING = {"all", "collect_facts", "render_report", "check_refusals"}
COMPARING = {"compare_metrics", "compare_tasks", "compare_selectors"}
GATHERING = REPORTING | COMPARING | {"gather_table", "gather_jobs", "build_database", "plot_figure"}
# Their jobs measure all variants of a model, whatever the calibration.
WHOLE_MODEL = {"benchmark_efficiency"}
LOADING = {
    *("capture_activations", "sweep_units", "fit_patch", "heal_variant"),
    *("benchmark_task", "benchmark_perplexity", *WHOLE_MODEL),
}
EDIT = "\nEDITED = True\n"


def rules(jobs: list[Job]) -> set[str]:
    return {job.rule for job in jobs}


def of(jobs: list[Job], rule: str, wildcard: str) -> set[str]:
    """The values of a wildcard in the jobs of a rule."""
    return {job.wildcards[wildcard] for job in jobs if job.rule == rule}


def test_a_second_run_has_nothing_to_do(finished: Project) -> None:
    assert finished.stale() == []


def test_touching_any_file_reruns_nothing(finished: Project) -> None:
    for part in ("resources", "src", "workflow", "rules", "sql", "config", "envs"):
        for path in (finished.folder / part).rglob("*"):
            if path.is_file():
                path.touch()
    assert finished.stale() == []


# Changes of the configuration.


def test_a_new_limit_reruns_that_calibration_and_what_follows_only(restored: Project) -> None:
    restored.configure({"calibrations": {"recall": {"limit": 41}}})
    jobs = restored.stale()
    measured = [job for job in jobs if job.rule not in GATHERING and job.rule not in WHOLE_MODEL]
    assert {job.rule for job in measured} >= {
        "prepare_calibration",
        "sweep_units",
        "fit_patch",
        "benchmark_task",
    }
    assert {job.wildcards["calibration"] for job in measured} == {"recall"}


def test_a_new_task_adds_its_jobs_and_reruns_only_what_gathers(restored: Project) -> None:
    restored.configure({"benchmarks": {"tasks": {"microworld_facts": {"limit": 50}}}})
    jobs = restored.stale()
    measured = [job for job in jobs if job.rule not in GATHERING]
    assert {job.rule for job in measured} == {"prepare_task", "check_overlap", "benchmark_task"}
    assert {job.wildcards["task"] for job in measured} == {"microworld_facts"}


def test_an_option_that_is_written_out_with_its_default_reruns_nothing(restored: Project) -> None:
    change = {
        "repairs": {"ghost": {"ridge": "validated", "bias": False}},
        "selectors": {"cosine": {"combine": "mean"}},
    }
    restored.configure(change)
    assert restored.stale() == []


def test_a_new_option_of_a_repair_reruns_its_patches_and_what_follows(restored: Project) -> None:
    restored.configure({"repairs": {"ghost": {"bias": True}}})
    jobs = restored.stale()
    assert rules(jobs) - GATHERING == {
        *("fit_patch", "heal_variant", "benchmark_task", "benchmark_perplexity", *WHOLE_MODEL)
    }
    assert of(jobs, "heal_variant", "repair") == {"ghost"}


def test_another_way_of_scoring_reruns_plans_and_no_sweep_of_the_base(restored: Project) -> None:
    restored.configure({"calibrations": {"recall": {"score": "acc"}}})
    jobs = restored.stale()
    assert {"score_relevance", "prune_step"} <= rules(jobs)
    assert not rules(jobs) & {"prepare_calibration", "capture_activations"}
    assert not {s for s in of(jobs, "sweep_units", "selector") if s.startswith("base/")}


def test_a_diagnosis_adds_its_job_and_a_table(restored: Project) -> None:
    change = {
        "diagnoses": {"spread": {"kind": "variance"}},
        "studies": {"maps": {"diagnoses": ["spread"]}},
    }
    restored.configure(change)
    jobs = restored.stale()
    assert rules(jobs) - GATHERING == {"diagnose_layers"}
    assert of(jobs, "gather_table", "table") == {"diagnoses"}


# Changes of the code.


@pytest.mark.parametrize(
    "file",
    [
        *(
            "src/lamina/repair/methods/ghost.py",
            "src/lamina/engine/sweep.py",
            "src/lamina/store/parquet.py",
        ),
        *(
            "workflow/scripts/sweep_units.py",
            "workflow/scripts/gather_table.py",
            "src/lamina/models/surgery.py",
        ),
    ],
)
def test_a_comment_reruns_nothing(restored: Project, file: str) -> None:
    restored.add(file, "\n# A remark.\n")
    assert restored.stale() == []


@pytest.mark.parametrize(
    "file",
    [
        *("src/lamina/errors.py", "src/lamina/variant.py", "src/lamina_workflow/checks/load.py"),
        *(
            "src/lamina/paths.py",
            "src/lamina/selection/residuals.py",
            "src/lamina/selection/strategies/deepest.py",
        ),
    ],
)
def test_what_computes_no_number_of_the_study_reruns_nothing(restored: Project, file: str) -> None:
    """Messages, the configuration's classes, rules' helpers, and methods that no entry names."""
    restored.add(file, EDIT)
    assert restored.stale() == []


MEASURED = {"sweep_units", "capture_activations", "prune_step", "prepare_calibration"}
# An edited module, what reruns at least, what does not, and the values of a wildcard in the jobs of a rule.
EDITED = {
    "repair/methods/ghost": (
        {"fit_patch", "benchmark_task"},
        MEASURED,
        ("heal_variant", "repair", {"ghost"}),
    ),
    "healing/lora": (
        {"heal_variant"},
        MEASURED | {"fit_patch"},
        ("benchmark_task", "calibration", {"recall"}),
    ),
    "selection/strategies/iterative": (
        {"prune_step", "benchmark_task"},
        set(),
        ("heal_variant", "healing", {"lora"}),
    ),
    "relevance/metrics/streams": ({"prune_step"}, set(), ("fit_patch", "selector", {"cosine"})),
}


@pytest.mark.parametrize("module", EDITED)
def test_editing_a_module_reruns_its_jobs_and_what_follows(restored: Project, module: str) -> None:
    least, spared, (rule, wildcard, values) = EDITED[module]
    restored.add(f"src/lamina/{module}.py", EDIT)
    jobs = restored.stale()
    assert least <= rules(jobs) and not rules(jobs) & spared
    assert of(jobs, rule, wildcard) == values
    assert not {s for s in of(jobs, "sweep_units", "selector") if s.startswith("base/")}


def test_editing_a_metric_that_no_plan_reads_reruns_scores_and_the_report(
    restored: Project,
) -> None:
    restored.add("src/lamina/relevance/metrics/outputs.py", EDIT)
    jobs = restored.stale()
    assert rules(jobs) <= GATHERING | {"score_relevance"} and "score_relevance" in rules(jobs)
    assert of(jobs, "gather_table", "table") == {"relevance"}


# Tables, views, figures, the report.


WRITTEN = {
    "sweep": "sweeps",
    "prune": "plans",
    "benchmark": "benchmarks",
    "repair": "patches",
    "prepare": "models",
}


@pytest.mark.parametrize(("stage", "table"), WRITTEN.items())
def test_a_new_column_reruns_its_table_and_the_report(
    restored: Project, stage: str, table: str
) -> None:
    restored.add(
        f"src/lamina/tables/{stage}.py",
        f'{table.upper()}.columns["made_up"] = Column("string", "Nothing.")\n',
    )
    jobs = restored.stale()
    assert rules(jobs) <= GATHERING
    assert of(jobs, "gather_table", "table") == {table}


def test_a_new_view_reruns_figures_and_the_report(restored: Project) -> None:
    restored.add("sql/views.sql", "CREATE OR REPLACE VIEW made_up AS SELECT * FROM models;\n")
    assert rules(restored.stale()) == GATHERING - {
        "gather_table",
        "compare_metrics",
        "compare_tasks",
    }


def test_editing_a_figure_redraws_it_alone(restored: Project) -> None:
    restored.add("src/lamina_workflow/report/figures/training_curves.py", EDIT)
    jobs = restored.stale()
    assert rules(jobs) == REPORTING - {"collect_facts"} | {"plot_figure"}
    assert of(jobs, "plot_figure", "figure") == {"training_curves"}


def test_a_new_version_of_lamina_is_told_by_the_report(restored: Project) -> None:
    restored.add("src/lamina/version.py", 'VERSION = "9.9.9"\n')
    assert rules(restored.stale()) == REPORTING


# Registries and packages.


def test_a_new_family_reruns_nothing(restored: Project) -> None:
    restored.add("src/lamina/models/families.py", 'FAMILIES["made_up"] = Family(alibi=True)\n')
    assert restored.stale() == []


def test_a_familys_own_entry_reruns_what_loads_its_models(restored: Project) -> None:
    restored.add("src/lamina/models/families.py", 'FAMILIES["llama"] = Family(alibi=True)\n')
    jobs = restored.stale()
    assert rules(jobs) >= LOADING
    assert not rules(jobs) & {"prepare_model", "prepare_calibration", "prepare_task"}


@pytest.mark.parametrize(
    ("package", "spared"),
    [
        *(
            ("ruff", None),
            ("matplotlib", None),
            ("duckdb", None),
            ("snakemake", None),
            ("pydantic", None),
        ),
        (
            "peft",
            {
                "prepare_calibration",
                "capture_activations",
                "sweep_units",
                "prune_step",
                "fit_patch",
            },
        ),
    ],
)
def test_a_new_version_reruns_what_imports_it(
    restored: Project, package: str, spared: set[str] | None
) -> None:
    restored.edit("requirements.lock", f"\n{package}==", f"\n{package}==99.")
    jobs = restored.stale()
    if spared is None:
        assert jobs == []
    else:
        assert "heal_variant" in rules(jobs) and not rules(jobs) & spared


def test_a_new_version_of_torch_reruns_what_computes_with_it(restored: Project) -> None:
    restored.edit("requirements.lock", "\ntorch==", "\ntorch==99.")
    assert rules(restored.stale()) >= LOADING


def test_a_change_that_is_taken_back_leaves_nothing_stale(restored: Project) -> None:
    restored.configure({"seed": 1})
    assert rules(restored.stale()) >= {"prepare_calibration", "score_relevance", "fit_patch"}
    restored.configure({"seed": 0})
    assert restored.stale() == []
