"""The database of a run, its figures, and the page that a user reads.

Everything here reads the tables of a run through the views of `sql/*.sql`. `queries` knows the SQL
files, `database` opens the tables with the views or builds `lamina.duckdb`, and `answers` returns
the answer to a question of `sql/queries` as rows. `page` assembles the report: `summary` and
`cautions` write its sentences, `explorer` its interactive figures, `figures/` the others (one
module each), `glossary` explains names, and `recommendation` fills its cards. `paired_tests`
computes table `comparisons`.

Commands: `ending` (last lines of a run), `shell` (`make query`), `compare` (two results folders).
"""
