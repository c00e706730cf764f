"""One module per figure of the report, found by itself.

It declares, as plain literals: `TITLE`, its heading; `PLACE`, where it stands on the page (lowest first); `TABLES`, all
that it reads, and so the inputs of its job; `QUERIES`, the questions of `sql/queries` that it asks; `ABOUT`, its
caption in Snakemake's own report. The answer to the first question is what is drawn. Where more is computed than SQL
answers, `data(connection)` gives the rows. They stand beside the picture as CSV. `draw(rows, theme)` gives the figure
and `caption(rows)` its caption with sample counts. Without rows neither is called, and the report has no such section.
"""
