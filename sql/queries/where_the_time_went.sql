-- Where did the time go?
--
--   duckdb results/lamina.duckdb -f sql/queries/where_the_time_went.sql
--
-- One row per rule, the most expensive first.
-- n_jobs                       jobs that Snakemake timed
-- seconds                      wall time of all these jobs; jobs that ran at the same time count in
--                              full
-- mean_seconds, stderr         mean wall time of a job and its standard error over the jobs
-- max_seconds, max_rss_mb      largest wall time and largest memory of any job
-- Empty where no job has been timed, which snakemake does with --benchmark-extended, as `make run` has it.
SELECT rule, count(*) AS n_jobs, sum(seconds) AS seconds, avg(seconds) AS mean_seconds,
    stddev_samp(seconds) / sqrt(count(*)) AS stderr, max(seconds) AS max_seconds, max(max_rss_mb) AS max_rss_mb
FROM jobs GROUP BY ALL
ORDER BY seconds DESC, rule;
