"""One module per figure of the report, found by itself.

It declares, as plain literals: `TITLE`, its heading; `PLACE`, where it stands on the page (lowest first); `TABLES`, all
that it reads, and so the inputs of its job; `ABOUT`, its caption in Snakemake's own report. `draw(connection)` gives
the figure, `caption(connection)` its caption with sample counts ("" where there is nothing to show, which leaves it out
of the report). The answer of `QUERY`, or what `data(connection)` gives where more than a query is computed, is what is
drawn, and stands beside the picture as CSV.
"""
