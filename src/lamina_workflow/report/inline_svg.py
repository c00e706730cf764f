"""Embed the figures of a run in its page: each SVG file becomes an `svg` element."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from lamina.registry import declared_literals

# Characters of a figure's CSV that the page embeds; a longer one stays a file next to the picture.
MAX_CSV_LENGTH = 300_000
DEFAULT_WIDTH = 900  # pixels, for a file without a width


@dataclass(frozen=True)
class PageFigure:
    """A figure that has data, ready for the template."""

    name: str
    title: str
    questions: tuple[str, ...]  # the queries that it draws
    lead: int  # the figure with the highest is shown at the top of the page
    folded: bool  # whether its section is closed until a reader opens it
    svg: Markup
    caption: Markup
    csv: Markup  # empty if it is too long for the page


def read_figures(files: Iterable[Path]) -> list[PageFigure]:
    """The figures that have data, in the order of the page.

    A figure without data has no caption. `{name}.csv` is next to `{name}.svg`.
    """
    titles = declared_literals("lamina_workflow.report.figures", "TITLE")
    positions = declared_literals("lamina_workflow.report.figures", "POSITION")
    questions = declared_literals("lamina_workflow.report.figures", "QUERIES")
    leads = declared_literals("lamina_workflow.report.figures", "LEAD")
    folded = declared_literals("lamina_workflow.report.figures", "FOLDED")

    figures = []
    ordered_files = sorted(files, key=lambda file: positions[file.stem])
    for index, file in enumerate(ordered_files):
        text = file.read_text(encoding="utf-8")
        caption = re.search(r"<desc>(.*?)</desc>\s*", text, re.DOTALL)
        if caption is None:
            continue
        name = file.stem
        figure = PageFigure(
            name=name,
            title=titles[name],
            questions=questions[name],
            lead=leads.get(name, 0),
            folded=folded.get(name, False),
            svg=make_element(text.replace(caption[0], ""), f"f{index}", titles[name]),
            caption=Markup(caption[1]),
            csv=_read_csv(file.with_suffix(".csv")),
        )
        figures.append(figure)
    return figures


def _read_csv(file: Path) -> Markup:
    if not file.exists():
        return Markup("")
    text = file.read_text(encoding="utf-8")
    if len(text) >= MAX_CSV_LENGTH:
        return Markup("")
    return Markup(text.replace("<", ""))


def make_element(svg: str, id_prefix: str, title: str) -> Markup:
    """The text of an SVG file as an element of a page, without its prologue and links.

    An id is kept only if the drawing refers to it. It gets the prefix `id_prefix`, so that the ids
    of several figures on one page differ.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", body)
    body = body.replace("xlink:href", "href")
    body = _rename_ids(body, id_prefix)

    head, rest = body.split(">", 1)
    width_match = re.search(r'width="([\d.]+)pt"', head)
    width = DEFAULT_WIDTH
    if width_match:
        width = round(float(width_match[1]) * 4 / 3)  # from points
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    style = f'style="--width:{width}px"'
    return Markup(f'{head} role="img" aria-label="{title}" {style}>{rest}')


def _rename_ids(svg: str, id_prefix: str) -> str:
    referenced = dict.fromkeys(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    new_ids = {old_id: f"{id_prefix}-{index}" for index, old_id in enumerate(referenced)}

    def rename_definition(match: re.Match[str]) -> str:
        new_id = new_ids.get(match[1])
        return f' id="{new_id}"' if new_id else ""

    def rename_reference(match: re.Match[str]) -> str:
        return match[1] + new_ids[match[2]]

    svg = re.sub(r'\s+id="([^"]*)"', rename_definition, svg)
    return re.sub(r'(href="#|url\(#)([^")]+)', rename_reference, svg)
