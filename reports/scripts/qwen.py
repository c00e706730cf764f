"""The studies of reports/qwen.md, one after the other, and the tables of that page.

    PYTHONPATH=src python reports/scripts/qwen.py run       # goes on where it was stopped
    PYTHONPATH=src python reports/scripts/qwen.py tables    # of the studies that have ended

Both work in the current folder: `results/`, `config/qwen-*.yaml` and `reports/qwen.md` are there.
`config/qwen-1.5b*.yaml` are run by themselves.
A table of the page stands between `<!-- NAME -->` and `<!-- end -->`.
"""

import subprocess
import sys
from pathlib import Path

import duckdb
import yaml

DATABASE = Path("results/lamina.duckdb")
PAGE = Path("reports/qwen.md")
MODEL = "qwen-0.5b"
# In the order in which they run; `draws` is the first one with a second draw of its questions.
STUDIES = [f"config/{MODEL}.yaml", "config/qwen-repairs.yaml", "config/qwen-written.yaml",
           "config/qwen-own-answers.yaml", "config/qwen-papers.yaml", f"results/{MODEL}-draws.yaml",
           "config/qwen-repaired.yaml"]  # fmt: skip

# Points of accuracy that each way loses against the member that is best in hindsight, in cases of a
# task, a draw and a size; and against the portfolio, over documents.
ADVICE = """
WITH cases AS (
    SELECT coalesce(c.replicate_of, s.calibration) AS task, s.calibration, s.removed, s.selector, 100 * s.value AS value,
        -- the worst has place 1, and equal ones share the last place of theirs
        count(*) OVER (PARTITION BY s.calibration, s.removed ORDER BY s.value) AS place,
        s.base_value - 1.96 * s.base_stderr > s.chance AS is_clear
    FROM studies.scores AS s JOIN studies.calibrations AS c USING (study, model, calibration)
    WHERE study = $study AND own AND repair = 'none' AND s.removed > 0
),
best AS (
    SELECT calibration, removed, max(value) AS value FROM cases WHERE selector NOT IN ('portfolio', 'repaired', 'deepest')
    GROUP BY ALL
),
documents AS (
    SELECT coalesce(c.replicate_of, b.calibration) AS task, sample, selector, 100 * avg(value) AS value
    FROM studies.benchmark_samples AS b JOIN studies.calibrations AS c USING (study, model, calibration)
    WHERE study = $study AND metric = 'acc_norm' AND repair = 'none' AND removed > 0 GROUP BY ALL
),
by_task AS (
    SELECT task, d.selector, avg(p.value - d.value) AS difference, var_samp(p.value - d.value) / count(*) AS variance,
        count(*) AS n
    FROM documents AS d JOIN (FROM documents WHERE selector = 'portfolio') AS p USING (task, sample) GROUP BY ALL
),
paired AS (
    SELECT selector, avg(difference) AS difference, 1.96 * sqrt(sum(variance)) / count(*) AS reach, sum(n) AS n
    FROM by_task GROUP BY ALL
)
SELECT selector AS way, count(*) AS cases, round(avg(best.value - c.value), 1) AS "regret, mean",
    round(avg(best.value - c.value) FILTER (is_clear), 1) AS "base above chance",
    count(*) FILTER (is_clear) AS "such cases", round(max(best.value - c.value), 1) AS worst,
    count(*) FILTER (place <= 2) AS "among the two worst",
    format('{:.1f} ({:.1f} to {:.1f})', any_value(difference), any_value(difference - reach), any_value(difference + reach))
        AS "portfolio is better by", any_value(n)::BIGINT AS n
FROM cases AS c JOIN best USING (calibration, removed) JOIN paired USING (selector)
GROUP BY selector ORDER BY 3
"""
ADVICE_WITH_REPAIR = ADVICE.replace("repair = 'none'", "repair = 'ghost'")
# Accuracy over tasks behind each plan, against the plan without a repair, over documents.
REPAIRS = """
WITH documents AS (
    SELECT calibration, selector, removed, repair, task, sample, 100 * value AS value
    FROM studies.benchmark_samples
    WHERE study = $study AND metric = 'acc_norm' AND removed > 0 AND healing = 'none'
),
by_task AS (
    SELECT d.calibration, d.selector, d.removed, d.repair, task, avg(d.value) AS value, avg(d.value - b.value) AS gain,
        var_samp(d.value - b.value) / count(*) AS variance, count(*) AS n
    FROM documents AS d JOIN (FROM documents WHERE repair = 'none') AS b
        USING (calibration, selector, removed, task, sample)
    GROUP BY ALL
),
means AS (
    SELECT calibration, selector, removed, repair, avg(value) AS value, avg(gain) AS gain,
        1.96 * sqrt(sum(variance)) / count(*) AS reach, sum(n)::BIGINT AS n
    FROM by_task GROUP BY ALL
)
SELECT calibration AS "fitted on", selector AS plan, removed, repair, round(means.value, 1) AS accuracy,
    format('{:.1f} ({:.1f} to {:.1f})', gain, gain - reach, gain + reach) AS "against none", n,
    format('{:.1f} (× {:.2f})', t.value, t.value / t.base_value) AS "perplexity (× base)"
FROM means
JOIN (FROM studies.scores WHERE study = $study AND healing = 'none' AND metric = 'perplexity') AS t
    USING (calibration, selector, removed, repair)
ORDER BY calibration, selector, removed, t.value
"""
WRITTEN = """
SELECT s.calibration, s.selector AS plan, s.removed, s.repair, task, metric, round(base_value, 3) AS base,
    round(value, 3) AS value, format('{:.0f} ± {:.0f}', 100 * kept, 196 * kept_stderr) AS "kept, %", n_samples AS n,
    result AS gate
FROM studies.scores AS s
LEFT JOIN (FROM studies.gate_results WHERE study = $study)
    USING (model, calibration, selector, removed, repair, healing, task, metric, n_samples)
WHERE s.study = $study AND s.removed > 0 AND higher_is_better
ORDER BY s.selector, s.removed, s.repair <> 'none', task
"""
JUDGES = """
WITH kept AS (
    SELECT model, calibration, selector, removed, task, n_samples,
        format('{:.2f} of {:.2f} ({:.0f} ± {:.0f} %)', value, base_value, 100 * kept, 196 * kept_stderr) AS text
    FROM studies.scores WHERE study = $study AND removed > 0 AND higher_is_better AND task LIKE 'written%'
)
SELECT if(calibration = 'written', 'the data''s answers', 'its own right answers') AS "judged by", selector AS way, removed,
    any_value(text) FILTER (task = 'written_arithmetic') AS "word problems",
    any_value(text) FILTER (task = 'written_json') AS JSON,
    any_value(text) FILTER (task = 'written_functions') AS functions, any_value(n_samples) AS n,
    any_value(round(text_ratio, 2)) AS "text, × base", any_value(units) AS layers
FROM kept JOIN (FROM studies.variants WHERE study = $study) USING (model, calibration, selector, removed)
GROUP BY ALL ORDER BY removed, way, "judged by" DESC
"""
CHOICES = """
SELECT selector AS way, removed, healing, round(base_value, 3) AS base,
    format('{:.3f} ± {:.3f}', value, 1.96 * stderr) AS accuracy,
    format('{:.1f} ± {:.1f}', 100 * change, 196 * change_stderr) AS "change, points", s.n_samples AS n,
    round(text_ratio, 2) AS "text, × base"
FROM studies.scores AS s
JOIN (FROM studies.variants WHERE study = $study) USING (model, calibration, selector, removed, repair, healing)
WHERE s.study = $study AND removed > 0 AND higher_is_better
ORDER BY selector = 'deepest', removed, value DESC
"""
AGREEMENT = """
SELECT metric, calibration AS task,
    format('{:.2f} ({:.2f} to {:.2f})', spearman, ci_low, ci_high) AS "Spearman with accuracy", n_units AS layers
FROM studies.task_agreements
WHERE study = $study AND component = 'layer' AND metric IN ('cosine', 'angular', 'perplexity', 'output_kl', 'margin')
ORDER BY metric, calibration
"""
TABLES = {
    "advice": (ADVICE, MODEL),
    "advice with two draws": (ADVICE, f"{MODEL}-draws"),
    "advice with a repair in place": (ADVICE_WITH_REPAIR, "qwen-repaired"),
    "advice of the 1.5B": (ADVICE, "qwen-1.5b"),
    "repairs": (REPAIRS, "qwen-repairs"),
    "repairs of the 1.5B": (REPAIRS, "qwen-1.5b-repairs"),
    "written": (WRITTEN, "qwen-written"),
    "judges": (JUDGES, "qwen-own-answers"),
    "judges of the 1.5B": (JUDGES, "qwen-1.5b-own-answers"),
    "choices": (CHOICES, "qwen-papers"),
    "agreement": (AGREEMENT, MODEL),
    "agreement of the 1.5B": (AGREEMENT, "qwen-1.5b"),
}


def write_second_draws(first: Path, second: Path) -> None:
    """The configuration of the first study with two draws of each calibration."""
    config = yaml.safe_load(first.read_text(encoding="utf-8"))
    for calibration in config["calibrations"].values():
        calibration["replicates"] = 2
    del config["benchmarks"]["perplexity"]  # the regret counts answers only
    second.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


def run_studies() -> None:
    """Run every study; one that has ended takes seconds."""
    for study in map(Path, STUDIES):
        if study.parent.name == "results":
            write_second_draws(Path(STUDIES[0]), study)
        command = [sys.executable, "-m", "lamina_workflow.cli", "run", str(study)]
        subprocess.run(command, check=True)


def as_markdown(relation: duckdb.DuckDBPyRelation) -> str:
    """The rows of an answer as a table of Markdown."""
    lines = [relation.columns, ["---"] * len(relation.columns), *relation.fetchall()]
    return "".join(
        f"| {' | '.join('–' if value is None else str(value) for value in line)} |\n"
        for line in lines
    )


def write_tables() -> None:
    """Replace each table of the page whose study has ended."""
    page = PAGE.read_text(encoding="utf-8")
    with duckdb.connect(str(DATABASE), read_only=True) as connection:
        ended = {
            study
            for (study,) in connection.sql("SELECT DISTINCT study FROM studies.models").fetchall()
        }
        for name, (query, study) in TABLES.items():
            if study not in ended:
                print(f"{name}: study {study} has not ended", file=sys.stderr)
                continue
            table = as_markdown(connection.sql(query, params={"study": study}))
            before, start, after = page.partition(f"<!-- {name} -->\n")
            _, end, after = after.partition("<!-- end -->")
            page = before + start + table + end + after
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    {"run": run_studies, "tables": write_tables}[sys.argv[1]]()
