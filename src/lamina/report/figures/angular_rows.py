"""Angular distance over runs of layers, each row on its own scale: where the best block of each size begins."""

from matplotlib.figure import Figure

from lamina.report.figures import style
from lamina.report.figures.angular_triangle import triangles

TITLE = "Where the best block of every size begins"
PLACE = 31
TABLES = ("activations", "models")
ABOUT = (
    "The angles of the figure above, each row of n layers stretched from 0, its least, to 1, its largest, so that the "
    "best run of every size is seen. The blue dot is that run; white dots cannot be told from it."
)

QUERIES = ("where_the_best_block_begins",)


def draw(data: style.Rows, theme: style.Theme) -> Figure:
    """Rows are spans, columns start layers; one panel per model and calibration [arXiv 2403.17887, fig. 4]."""
    return triangles(data, theme, by_row=True)


def caption(data: style.Rows) -> str:
    """The caption: what the figure shows, and the number of samples."""
    return (
        "The angle between the stream entering and leaving a run of n layers, at the last real token, each row "
        "stretched from 0 (its least) to 1 (its largest); mean over calibration samples "
        f"({style.counts([row['n_samples'] for row in data])} per panel). Blue: the best run of n layers, with its "
        "angle and 95 % interval at the right. White dots: runs within the 95 % interval of the difference, taken as "
        "if independent (not drawn above 16 layers). Dark along the outer diagonal: runs that include the last layer."
    )
