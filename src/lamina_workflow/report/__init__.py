"""The database of a run, its figures, and the page that a user reads.

Everything here reads the tables of a run through the views of `sql/*.sql`: `queries` knows the SQL
files, `database` opens the tables with the views or builds `lamina.duckdb`, and `answers` gives the
answer to a question of `sql/queries` as rows. `page` puts the report together: `summary` and
`cautions` write its sentences, `explorer` its interactive figures, `figures/` the others (one
module each), `glossary` the meaning of names, `recommendation` what its cards say. `paired_tests`
computes table `comparisons`.

Commands: `ending` (last lines of a run), `shell` (`make query`), `compare` (two results folders).
"""
