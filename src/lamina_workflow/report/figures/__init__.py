"""One module per figure of the report; a new module needs no entry in any list.

It declares, as plain literals:

    TITLE      the heading
    POSITION   its position on the page, lowest first
    TABLES     all tables that it reads, which are the inputs of its job
    QUERIES    the questions of `sql/queries` that it asks; it draws the answer to the first one
    KINDS      the kinds of diagnosis without which it has nothing to show (optional)
    NEEDS      how many names of a section it takes to show something (optional)
    LEAD       among figures that have it, the highest is at the top of the page (optional)
    FOLDED     whether the page shows it only on request, because few readers look for it (optional)

Its functions:

    draw(rows, theme)        the figure
    write_caption(rows)      the caption, with sample counts
    read_rows(connection)    the rows, if SQL alone cannot compute them (optional)

A CSV file with the rows is written next to the picture. Without rows, neither `draw` nor
`write_caption` is called, and the report has no such section.
"""
