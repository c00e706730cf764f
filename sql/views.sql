-- The views of a run and the macros that they use. Each view comes after those that it reads. They
-- read the tables of results/tables by name. lamina_workflow.report.database creates these first, over
-- the Parquet files or in results/lamina.duckdb.
--
--   duckdb results/lamina.duckdb                        a shell on tables, views and comments, in any folder
--   make sql, make query Q=NAME                         the same, and the answer of a query
--   SELECT * FROM duckdb_columns() WHERE NOT internal;  the data dictionary
--
-- docs/tables.md is the same dictionary. src/lamina/tables describes the columns of tables. Columns
-- that a view adds are described below it. A column that a view passes on keeps its description from
-- the first table or view in FROM and JOIN that has it.
--
-- The database file contains the rows of the views and the text of the macros. DuckDB 2 stores if()
-- and lambdas in a form that older versions cannot read. So write CASE, and no lambda.
--
-- Six columns identify a variant: model, calibration, selector, removed, repair, healing. The base
-- model has 'none' in calibration, selector, repair and healing, and removed = 0. A plan that only
-- moves layers also has removed = 0; the selector distinguishes the two. Layers are numbered as in
-- the base model.

-- A standard error from a variance. A variance below 0 comes from rounding. An unknown variance gives
-- an unknown error; greatest alone would make it 0.
CREATE OR REPLACE MACRO root(variance) AS CASE WHEN isfinite(variance) THEN sqrt(greatest(0, variance)) END;

-- Standard errors of upper / lower and of means. mean_stderr is for values with independent errors,
-- joint_stderr for values whose errors may be perfectly correlated. If the error of a value is
-- unknown, so is that of the mean.
CREATE OR REPLACE MACRO ratio_stderr(ratio, upper_stderr, lower, lower_stderr, covariance) AS
    CASE WHEN isfinite(lower)
        THEN root(upper_stderr ** 2 + ratio ** 2 * lower_stderr ** 2 - 2 * ratio * covariance) / lower END;
CREATE OR REPLACE MACRO mean_stderr(value, stderr) AS
    CASE WHEN count(stderr) = count(value) THEN sqrt(sum(stderr ** 2)) / count(value) END;
CREATE OR REPLACE MACRO joint_stderr(value, stderr) AS CASE WHEN count(stderr) = count(value) THEN avg(stderr) END;

-- Standard error of an accuracy. One right and one wrong answer are added, so that an accuracy of 0 or
-- 1 has an error.
CREATE OR REPLACE MACRO share_of_answers_stderr(share, n) AS
    root((n * share + 1) * (n * (1 - share) + 1)) / (n + 2) / root(n + 2);

-- Standard error of the mean difference between two numbers on the same documents. Answers are right
-- or wrong, so all their differences have one size or are zero. Then one document that differs in each
-- direction is added, so that the error is above 0 even if few or no documents differ. An interval of
-- 1.96 standard errors about the difference has the coverage of Tango's score interval [Bonett and
-- Price 2012, J. Educ. Behav. Stat. 37(4); reports/coverage.md]. Nats per token have no such size.
CREATE OR REPLACE MACRO paired_stderr(one, other, metric) AS
    CASE WHEN any_value(metric) = 'nll'
            OR coalesce(min(nullif(abs(one - other), 0)) < 0.999999 * max(abs(one - other)), false)
        THEN stddev_samp(one - other) / sqrt(count(*))
        ELSE coalesce(nullif(max(abs(one - other)), 0), nullif(max(greatest(abs(one), abs(other))), 0), 1)
            * root((count_if(one <> other) + 2) / (count(*) + 2)
                - ((count_if(one > other) - count_if(one < other)) / (count(*) + 2)) ** 2) / sqrt(count(*) + 2) END;

-- The same for a share of the base model's accuracy, counted from chance. It is computed from the
-- residuals of the ratio, document by document. Of n documents, both models answer `both_right`
-- correctly, only the variant `higher`, and only the base model `lower`.
CREATE OR REPLACE MACRO share_stderr(share, base, chance, both_right, higher, lower, n) AS
    root(both_right * ((1 - chance) * (1 - share)) ** 2 + (n - both_right - higher - lower) * (chance * (1 - share)) ** 2
        + (higher + 1) * (1 - chance + share * chance) ** 2 + (lower + 1) * (chance + share * (1 - chance)) ** 2)
        / (n + 2) / (base - chance);

-- What these two added documents contribute to the covariance of two shares over the same documents.
CREATE OR REPLACE MACRO share_covariance(one, other, base, chance, n) AS
    ((1 - chance + one * chance) * (1 - chance + other * chance)
        + (chance + one * (1 - chance)) * (chance + other * (1 - chance))) / ((n + 2) * (base - chance)) ** 2;

-- Covariance of two perplexities over the same documents, from the standard error of the difference
-- of their nll. Perplexity is exp(nll), so its errors are relative to its value.
CREATE OR REPLACE MACRO perplexity_covariance(one, one_stderr, other, other_stderr, nll_stderr) AS
    one * other * ((one_stderr / one) ** 2 + (other_stderr / other) ** 2 - nll_stderr ** 2) / 2;

-- Shares of the base model's accuracy are shown only if it is above chance. For weak base models this
-- selects lucky measurements. So a share has an interval only if the base model is four standard
-- errors above chance (`clear_base`). The standard error of the share then allows for a base model
-- that is worse than measured, by `reach`: three standard errors, or fewer if it is more than five
-- above chance, down to 1.96. If a variant's accuracy rises by `slope` per unit of the base model's,
-- the share rises by (share - slope) (base - truth) / (truth - counted_from). The excess of this over
-- the usual standard error of a ratio is added. An accuracy near 1 seems more exact than it is, so
-- `error` is at least that of a model that guesses on n documents. Coverage: reports/coverage.md.
CREATE OR REPLACE MACRO base_error(stderr, chance, n) AS
    CASE WHEN chance IS NOT NULL THEN greatest(stderr, sqrt(chance * (1 - chance) / n)) END;
CREATE OR REPLACE MACRO clear_base(base, error, chance) AS base - 4 * error > chance;
CREATE OR REPLACE MACRO base_reach(base, error, chance) AS
    error * least(3, greatest(1.959964, 15 * error / (base - chance)));
CREATE OR REPLACE MACRO luck_stderr(share, slope, base, error, reach, counted_from) AS
    abs(share - slope)
        * greatest(0, reach / 1.959964 / (base - reach - counted_from) - error / (base - counted_from));

-- Slope of a variant's accuracy over the base model's: its accuracy on documents that the base model
-- answers correctly, minus that on the others. The counts are those of `share_stderr`.
CREATE OR REPLACE MACRO answer_slope(both_right, higher, lower, n) AS
    coalesce(both_right / nullif(both_right + lower, 0), 0) - coalesce(higher / nullif(n - both_right - lower, 0), 0);

-- Metrics of written answers, as opposed to choices.
CREATE OR REPLACE MACRO is_of_writing(metric) AS
    regexp_matches(metric, 'written|^pass@|repetition|unstopped|length$');

-- Student's t: the 95 % interval of the mean of n numbers is this many standard errors to each side.
CREATE OR REPLACE MACRO t95(n) AS coalesce([12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086][n - 1], 1.96 + 2.4 / (n - 1));

-- The value that a standard normal variable exceeds with probability p < 0.5, to 0.0005 [Abramowitz
-- and Stegun 26.2.23].
CREATE OR REPLACE MACRO z_above(p) AS sqrt(-2 * ln(p)) - (2.515517 + 0.802853 * sqrt(-2 * ln(p)) - 0.020656 * ln(p))
    / (1 + 1.432788 * sqrt(-2 * ln(p)) - 0.378538 * ln(p) + 0.001308 * sqrt(-2 * ln(p)) ** 3);

-- What `certain` means everywhere: other test documents would show it too, with probability 97.5 %,
-- for all `tried` competing numbers at once. The correction is Bonferroni's, which is valid for any
-- correlation. Without it the best of many would seem certain because it was lucky. `ahead` is the
-- distance from the threshold. `step` is how much one more wrong document lowers the number; for a
-- difference from zero it is the difference over n. So the error is that of a number at the
-- threshold, not that of the measured one. Null if the error is unknown.
CREATE OR REPLACE MACRO certain(ahead, stderr, step, tried) AS
    ahead > 0 AND ahead ** 2 > z_above(0.025 / tried) ** 2 * (stderr ** 2 + ahead * step);

-- What a variant keeps of the base model's scores.
.read sql/scores.sql
-- Whether variants reach what their studies demand.
.read sql/gates.sql
-- Replicates combined: means over draws of a calibration or a selector.
.read sql/draws.sql
-- What repairs recover, and what is left of written answers and of choices.
.read sql/repairs.sql
-- Units: their relevance, the order in which they are removed, and what searches over sets of them
-- found.
.read sql/layers.sql
-- All facts about each variant, and which one to take.
.read sql/variants.sql
-- How large and how fast variants are.
.read sql/sizes.sql
