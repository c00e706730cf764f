"""The report in a real browser, and its text: against counts in SQL over the same tables."""

import re
import shutil
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lamina.store import parquet
from lamina_workflow.report import database, explorer, formatting
from lamina_workflow.report.figures.drawing import draw_figure
from lamina_workflow.report.judgements import Judgement
from lamina_workflow.report.page import render_report
from lamina_workflow.report.queries import read_query
from tests import ROOT
from tests.given import chromium
from tests.given.figures import FIGURES
from tests.given.slow import slow_except

TEMPLATE = ROOT / "workflow" / "report" / "report.html.j2"
NAMES = {
    "selectors": {"accuracy": "Removes the lowest unit."},
    "repairs": {"ghost": "One linear map."},
    "chosen": {"accuracy": "chosen by accuracy (iterative)"},
    "stock": {},
}

if chromium.CHROMIUM is None:
    warnings.warn(
        "no Chromium on this machine: the report is not opened (apt-get install chromium)",
        stacklevel=1,
    )
in_browser = pytest.mark.skipif(
    chromium.CHROMIUM is None, reason="no Chromium: apt-get install chromium"
)


@pytest.fixture(scope="module")
def report_file(two_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of two models with one figure."""
    folder = tmp_path_factory.mktemp("report")
    figure = folder / "relevance_maps.svg"
    map_tables = [two_models / f"{table}.parquet" for table in FIGURES["relevance_maps"].TABLES]
    drawing = draw_figure("relevance_maps", database.connect_views(map_tables))
    figure.write_text(drawing.svg, encoding="utf-8")
    connection = database.connect_views(two_models.glob("*.parquet"))
    names = {"selectors": NAMES["selectors"]}
    html = render_report(connection, [figure], TEMPLATE, {"seed": 0}, 0.9, None, names)
    (folder / "report.html").write_text(html, encoding="utf-8")
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Page]:
    with chromium.open_page(tmp_path_factory.mktemp("profile")) as page:
        yield page


def open_report(browser: chromium.Page, file: Path, width: int = 1280) -> chromium.Page:
    """The report once its interactive figures are drawn."""
    browser.open(file, width)
    browser.run("document.documentElement.drawn.then(() => true)")
    return browser


@pytest.fixture
def page(browser: chromium.Page, report_file: Path) -> chromium.Page:
    return open_report(browser, report_file)


# What a user sees and touches, in JavaScript.
SHOWN_ROWS = 'document.querySelectorAll("#table tbody tr:not([hidden])").length'
CHOSEN_ROWS = 'document.querySelectorAll("tr.chosen").length'
POINTS = 'document.querySelectorAll("#frontier-live .mark-symbol.role-mark path").length'
CHOSEN_POINTS = 'document.querySelectorAll("#frontier-live path[stroke=black]").length'
LAST_POINT = """(() => {
    const points = document.querySelectorAll("#frontier-live .mark-symbol.role-mark path");
    const point = [...points].at(-1);
    point.scrollIntoView({ block: "center", behavior: "instant" });
    const box = point.getBoundingClientRect();
    return [box.x + box.width / 2, box.y + box.height / 2];
})()"""
KEPT_COLUMN = """
    [...document.querySelectorAll("#table tbody tr:not([hidden]) td:nth-child(10)")]
    .map(cell => cell.dataset.value)"""
SET_CONTROL = """(() => {{
    const control = document.getElementById("choose").elements["{name}"];
    control.value = "{value}";
    control.dispatchEvent(new Event("input", {{ bubbles: true }}));
}})()"""


def count_shown_rows(page: chromium.Page) -> int:
    """The number of rows that the table says it shows, and does."""
    count = int(page.run('document.getElementById("shown").textContent'))
    assert count == page.run(SHOWN_ROWS)
    return count


def set_controls(page: chromium.Page, **values: str) -> int:
    """Set controls as a user does; the number of rows that the table then shows."""
    for name, value in values.items():
        page.run(SET_CONTROL.format(name=name, value=value))
    return count_shown_rows(page)


def count_variants(folder: Path, condition: str) -> int:
    """The number of variants in the tables."""
    connection = database.connect_views(folder.glob("*.parquet"))
    variants = read_query(explorer.QUESTION).strip().rstrip(";")
    [[count]] = connection.execute(
        f"SELECT count(*) FROM ({variants}) WHERE {condition}"
    ).fetchall()
    return int(count)


@in_browser
def test_the_page_asks_for_nothing_but_itself(page, report_file):
    set_controls(page, words="ghost")

    requests = page.happened("Network.requestWillBeSent")
    addresses = {request["request"]["url"].split(",")[0] for request in requests}
    assert addresses <= {report_file.resolve().as_uri(), "data:image/png;base64"}


@in_browser
def test_the_browser_reports_no_error(page):
    set_controls(page, words="ghost")

    calls = page.happened("Runtime.consoleAPICalled")
    assert page.happened("Runtime.exceptionThrown") == []
    assert page.happened("Log.entryAdded") == []
    assert not [call for call in calls if call["type"] in ("error", "warning")]


@in_browser
@pytest.mark.parametrize("name", ["frontier", "curves"])
def test_interactive_figures_are_drawn(page, name):
    assert page.run(f'document.querySelectorAll("#{name}-live svg path").length') > 20


@in_browser
def test_at_first_the_table_and_the_frontier_have_all_variants_of_the_first_model(page, two_models):
    assert count_shown_rows(page) == count_variants(two_models, "model = 'a'")
    assert page.run(POINTS) == count_variants(two_models, "model = 'a' AND removed > 0")


# Controls, and the same choice in SQL. The base model is in the table unless words are searched.
CHOICES = [
    ({"calibration": "facts"}, "calibration = 'facts'"),
    ({"selector": "cosine"}, "selector = 'cosine'"),
    ({"removed": "2"}, "removed = 2"),
    ({"repaired_by": "ghost"}, "repair = 'ghost' AND healing = 'none'"),
    (
        {"calibration": "facts", "selector": "cosine", "removed": "2"},
        "calibration = 'facts' AND selector = 'cosine' AND removed = 2",
    ),
    ({"keep": "90"}, "own_kept >= 0.9"),
    ({"keep": "90", "text": "1.5"}, "own_kept >= 0.9 AND text_ratio <= 1.5"),
]


@in_browser
@pytest.mark.parametrize(("controls", "condition"), slow_except(CHOICES[-3:], CHOICES))
def test_controls_choose_rows_and_points(page, two_models, controls, condition):
    n_variants = count_variants(two_models, f"model = 'a' AND removed > 0 AND {condition}")

    n_rows = set_controls(page, **controls)

    assert n_rows == 1 + n_variants
    page.until(lambda: page.run(POINTS) == n_variants)


@in_browser
def test_words_choose_the_rows_that_hold_all_of_them(page, two_models):
    condition = "model = 'a' AND repair = 'ghost' AND healing LIKE 'lora%'"

    assert set_controls(page, words="ghost lora") == count_variants(two_models, condition)


@in_browser
def test_a_second_model_is_chosen_like_the_first(page, two_models):
    assert set_controls(page, model="b") == count_variants(two_models, "model = 'b'")


@in_browser
def test_a_choice_stands_in_the_address_until_it_is_reset(page, two_models):
    set_controls(page, calibration="facts", selector="cosine")
    assert "calibration=facts&selector=cosine" in page.run("location.search")

    page.run('document.querySelector("#choose button[type=reset]").click()')

    n_variants = count_variants(two_models, "model = 'a'")
    page.until(lambda: count_shown_rows(page) == n_variants)


@in_browser
def test_a_click_on_a_point_marks_its_row(page):
    page.press(*page.run(LAST_POINT))

    page.until(lambda: page.run(CHOSEN_ROWS) == 1)


@in_browser
def test_a_click_on_a_row_marks_its_point(page):
    page.run('document.querySelector("#table tbody tr:nth-child(3)").click()')

    page.until(lambda: page.run(CHOSEN_POINTS) == 1)
    assert page.run('document.querySelector("tr.chosen").id') == "variant-2"


@in_browser
def test_the_table_is_sorted_and_downloaded_as_shown(page, tmp_path):
    set_controls(page, selector="cosine")
    page.run('document.querySelector("#table thead th:nth-child(10)").click()')
    cells = page.run(KEPT_COLUMN)
    page.ask("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.run('document.getElementById("download").click()')
    page.until(lambda: any(file.stat().st_size for file in tmp_path.glob("*.csv")))

    numbers = [float(cell) for cell in cells if cell]
    assert len(numbers) > 5
    assert numbers == sorted(numbers)
    lines = (tmp_path / "variants.csv").read_text(encoding="utf-8-sig").splitlines()
    assert lines[0].startswith("handle,model,calibration,selector,removed")
    assert len(lines) == 1 + len(cells)


@in_browser
def test_the_page_is_no_wider_than_a_phone(browser, report_file):
    page = open_report(browser, report_file, width=390)

    heights = page.run(
        """[...document.querySelectorAll("figure svg")].filter(svg => svg.clientWidth)
        .map(svg => svg.clientHeight)"""
    )
    assert page.run("document.documentElement.scrollWidth") <= 390
    assert min(heights) > 100


@in_browser
def test_without_scripts_the_page_has_still_figures_and_the_whole_table(browser, report_file):
    browser.open(report_file, scripts=False)
    # For the questions below; the page is loaded.
    browser.ask("Emulation.setScriptExecutionDisabled", value=False)

    heights = browser.run(
        "[...document.querySelectorAll('.still svg')].map(svg => svg.clientHeight)"
    )
    n_variants = browser.run(
        'JSON.parse(document.getElementById("data").textContent).variants.length'
    )
    assert sum(height > 200 for height in heights) == 4  # two figures of two models
    assert not browser.run('document.getElementById("choose").clientHeight')
    assert browser.run(SHOWN_ROWS) == n_variants


def test_every_section_names_the_questions_that_it_answers(report_file):
    """So that a wrong number is traced from the page to its SQL."""
    sections = report_file.read_text(encoding="utf-8").split("<section")[1:]

    queries = {}
    for section in sections:
        identifier = re.search(r'id="([^"]+)"', section)[1]
        content = section.split("</section>")[0]
        queries[identifier] = re.findall(r"<code>(sql/queries/\w+\.sql)</code>", content)
    assert queries.keys() >= {"take", "explore", "summary", "glance", "facts", "relevance_maps"}
    for identifier, paths in queries.items():
        # The names are explained by the configuration; the facts list whole tables.
        assert paths or identifier in {"names", "facts"}, identifier
        assert all((ROOT / path).is_file() for path in paths), identifier


REPORT_PACKAGE = ROOT / "src/lamina_workflow/report"
PAGE_MODULES = [
    *sorted(REPORT_PACKAGE.glob("figures/*.py")),
    REPORT_PACKAGE / "summary.py",
    REPORT_PACKAGE / "explorer.py",
]
# These list which names there are; no number on the page comes from it.
MODULES_THAT_LIST = {"style", "calibration_size"}


@pytest.mark.parametrize("module", PAGE_MODULES, ids=lambda module: module.stem)
def test_no_sql_of_a_number_stands_in_the_code_of_the_page(module):
    code = module.read_text(encoding="utf-8")

    sql = re.search(r"\bSELECT\b|\bFROM \w+ (WHERE|ORDER)", code)
    assert sql is None or module.stem in MODULES_THAT_LIST


def test_every_number_of_the_recommendation_has_its_count_and_interval(report_file):
    html = report_file.read_text(encoding="utf-8")
    recommendation = html[: html.index('id="names"')]
    facts = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", recommendation, re.DOTALL)

    assert len(facts) > 10
    for name, text in facts:
        if name in ("size", "loads") or "too noisy to say" in text:
            continue
        assert re.search(r"±|\[.*, .*\]", text), (name, text)
        assert re.search(r"n = \d", text), (name, text)


def render_cards(
    folder: Path,
    facts: dict[str, str],
    names: dict[str, dict[str, str]] = NAMES,
    judgements: Sequence[Judgement] = (),
) -> str:
    """The report of a study without figures; a model must keep half."""
    connection = database.connect_views(folder.glob("*.parquet"))
    return render_report(connection, [], TEMPLATE, facts, 0.5, None, names, judgements=judgements)


@pytest.fixture(scope="module")
def page_of_cards(two_models: Path) -> str:
    """The report of a study with a configuration of the user's."""
    judged = Judgement(
        "new.jsonl", "a/c/s/removed=1/none/none", [], "acc", [1.0] * 80, [0.0] * 80, 0.5
    )
    return render_cards(two_models, {"configuration": "config/mine.yaml"}, judgements=[judged])


def split_cards(html: str) -> list[str]:
    """The cards of recommended models that can be exported."""
    cards = re.findall(r"<article.*?</article>", html, re.DOTALL)
    return [card for card in cards if "lamina export" in card]


def list_export_commands(html: str) -> list[str]:
    """What follows `lamina export` in the commands of a page."""
    commands = re.findall(r"<code>lamina export (.*?)</code>", html)
    assert commands
    return commands


def test_a_card_has_the_command_that_exports_its_model(page_of_cards):
    for command in list_export_commands(page_of_cards):
        assert re.fullmatch(r"A\d+ config/mine.yaml", command)


@pytest.mark.slow
def test_the_default_configuration_is_not_named_in_the_command(changed_page):
    for command in list_export_commands(changed_page):
        assert re.fullmatch(r"A\d+", command)


def test_a_card_says_which_layers_to_remove(page_of_cards):
    sentences = re.findall(r'<p class="answer">(Remove .*?)</p>', page_of_cards)
    assert any(re.search(r"layers? \d.* of 6, chosen by ", sentence) for sentence in sentences)


def test_a_card_says_how_its_model_loads(page_of_cards):
    """A ghost that is not folded into the weights needs code; a model without it loads as ever."""
    cards = split_cards(page_of_cards)

    assert cards
    for card in cards:
        summary = card.split("<dl>")[0]
        if "repair: ghost" in summary:
            assert "trust_remote_code" in card
            assert "Best that loads everywhere" in card
        else:
            assert "wherever the base model does" in card


@pytest.fixture(scope="module")
def changed_page(two_models: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report without names of repairs, and of another study.

    MLPs were removed instead of layers, and the model wrote the answers of all calibrations.
    """
    folder = tmp_path_factory.mktemp("changed") / "tables"
    shutil.copytree(two_models, folder)
    plans = parquet.read_table(folder / "plans.parquet").to_pylist()
    for row in plans:
        if row["unit"]:
            row["unit"] += ".mlp"
    parquet.write_table(folder / "plans.parquet", parquet.from_rows("plans", plans))
    calibrations = parquet.read_table(folder / "calibrations.parquet").to_pylist()
    for row in calibrations:
        row |= {"n_asked": 80, "n_right": 64}
    table = parquet.from_rows("calibrations", calibrations)
    parquet.write_table(folder / "calibrations.parquet", table)
    return render_cards(folder, {}, {"stock": {"ghost": "stock"}})


@pytest.mark.slow
def test_a_card_says_that_a_stock_export_keeps_removed_mlps(page_of_cards, changed_page):
    of_layers = re.findall(r"<dt>size</dt><dd>(.*?)</dd>", page_of_cards)
    of_mlps = re.findall(r"<dt>size</dt><dd>(.*?)</dd>", changed_page)
    assert of_layers
    assert of_mlps
    assert not any("a stock export keeps removed sub-layers" in text for text in of_layers)
    assert all(text.count("a stock export keeps removed sub-layers") == 1 for text in of_mlps)


def test_new_questions_that_were_judged_are_on_the_page(page_of_cards, report_file):
    section = page_of_cards.partition('id="judged"')[2].partition("</section>")[0]

    assert "<td>new.jsonl</td>" in section
    assert "<td>100.0 % [95.4, 100.0]</td>" in section
    assert "-100.0 points" in section
    assert 'id="judged"' not in report_file.read_text(encoding="utf-8")


@pytest.mark.slow
def test_what_is_recommended_loads_in_the_program_that_is_asked_for(two_models):
    connection = database.connect_views(two_models.glob("*.parquet"))

    html = render_report(connection, [], TEMPLATE, {}, 0.5, None, NAMES, must_load="llama.cpp")

    cards = split_cards(html)
    assert cards
    for card in cards:
        assert "ghost" not in card
        assert "llama.cpp" in card
    assert "and that loads in llama.cpp" in html


@pytest.mark.slow
def test_the_page_says_where_the_model_wrote_the_answers_itself(page_of_cards, changed_page):
    sentence = "choices, the model's own answers (64 of 80 right)"

    assert changed_page.count(sentence) == 2 * 2  # two models, two calibrations
    assert sentence not in page_of_cards


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (dict(units="5 9", removed=2, layers=2), "layers 5 and 9 of 12"),
        (dict(units="5 9 8", removed=3, layers=3), "layers 5, 8 and 9 of 12"),
        (dict(units="2", removed=1, layers=1), "layer 2 of 12"),
        (dict(units="5.mlp 9.mlp", removed=2, layers=1.0), "5.mlp and 9.mlp"),
    ],
)
def test_a_removal_in_words(row, words):
    assert formatting.describe_removal(row, 12) == words


def test_a_ratio_of_times_has_its_interval():
    assert formatting.format_time_ratio(0.9, 0.01, 5).startswith("90.0 [")


def test_a_ratio_of_times_that_says_nothing_is_said_to_be_noise():
    assert formatting.format_time_ratio(1.6, 0.8, 5) == "too noisy"
