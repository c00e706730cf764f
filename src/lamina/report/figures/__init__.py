"""One module per figure of the report; a new module is found without a list of names.

It declares, as plain literals: `TITLE`, its heading; `PLACE`, its place on the page (lowest first); `TABLES`, all that
it reads, which are the inputs of its job; `QUERIES`, the questions of `sql/queries` that it asks. `KINDS` and `NEEDS`,
where it has them, say without which kinds of diagnosis, and below how many names in the studies, it has nothing to show
and is not drawn. Of those with a `LEAD` the highest stands beside the answer, on top of the page. The figure draws the
answer to the first question. If SQL cannot compute the rows, `data(connection)` gives them. A CSV file beside the
picture holds them. `draw(rows, theme)` gives the figure and `caption(rows)` its caption with sample counts. Without
rows neither is called, and the report has no such section.
"""
