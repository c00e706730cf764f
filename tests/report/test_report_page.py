"""The report in a browser: every control works, no request leaves the page, and it reads without scripts and small."""

import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from lamina.store import parquet
from lamina_workflow.report import database, explorer, formatting
from lamina_workflow.report.figures.drawing import draw_figure
from lamina_workflow.report.page import render_report
from lamina_workflow.report.queries import read_query
from tests import ROOT
from tests.given import chromium
from tests.given.figures import FIGURES
from tests.given.plausible_tables import VIEWS

TEMPLATE = ROOT / "workflow" / "report" / "report.html.j2"
DRAWN = ("relevance_maps",)

if chromium.CHROMIUM is None:
    warnings.warn(
        "no Chromium on this machine: the report is not opened (apt-get install chromium)",
        stacklevel=1,
    )
in_browser = pytest.mark.skipif(
    chromium.CHROMIUM is None, reason="no Chromium: apt-get install chromium"
)


@pytest.fixture(scope="module")
def file(two_models, tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("report")
    for name in DRAWN:
        connection = database.connect_views(
            VIEWS, [two_models / f"{table}.parquet" for table in FIGURES[name].TABLES]
        )
        (place / f"{name}.svg").write_text(draw_figure(name, connection).svg, encoding="utf-8")
    connection = database.connect_views(VIEWS, two_models.glob("*.parquet"))
    given = {"seed": 0}, 0.9, None, {"selectors": {"accuracy": "Removes the lowest unit."}}
    page = render_report(connection, place.glob("*.svg"), TEMPLATE, *given)
    (place / "report.html").write_text(page, encoding="utf-8")
    return place / "report.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[chromium.Page]:
    with chromium.open_page(tmp_path_factory.mktemp("profile")) as page:
        yield page


def opened(browser: chromium.Page, file: Path, width: int = 1280) -> chromium.Page:
    browser.open(file, width)
    browser.run("document.documentElement.drawn.then(() => true)")
    return browser


def chosen(page: chromium.Page, **values: str) -> int:
    """Set controls as a user does, and give the number of rows that the table then says it shows."""
    for name, value in values.items():
        page.run(
            f"""(() => {{ const control = document.getElementById("choose").elements["{name}"];
            control.value = "{value}"; control.dispatchEvent(new Event("input", {{ bubbles: true }})); }})()"""
        )
    said = int(page.run('document.getElementById("shown").textContent'))
    assert said == page.run('document.querySelectorAll("#table tbody tr:not([hidden])").length')
    return said


POINTS = 'document.querySelectorAll("#frontier-live .mark-symbol.role-mark path").length'


def counted(folder: Path, condition: str) -> int:
    connection = database.connect_views(VIEWS, folder.glob("*.parquet"))
    every = read_query(explorer.QUESTION).strip().rstrip(";")
    return connection.execute(f"SELECT count(*) FROM ({every}) WHERE {condition}").fetchall()[0][0]


@in_browser
def test_nothing_leaves_the_page_and_nothing_goes_wrong(browser, file):
    page = opened(browser, file)
    chosen(page, words="ghost")
    asked = {
        request["request"]["url"].split(",")[0]
        for request in page.happened("Network.requestWillBeSent")
    }
    assert asked <= {file.resolve().as_uri(), "data:image/png;base64"}
    assert page.happened("Runtime.exceptionThrown") == page.happened("Log.entryAdded") == []
    assert not [
        call
        for call in page.happened("Runtime.consoleAPICalled")
        if call["type"] in ("error", "warning")
    ]
    for name in ("frontier", "curves"):
        assert page.run(f'document.querySelectorAll("#{name}-live svg path").length') > 20


@in_browser
def test_each_control_chooses_rows_and_points(browser, file, two_models):
    page = opened(browser, file)
    one = "model = 'a' AND removed > 0 AND "
    assert chosen(page) == counted(two_models, "model = 'a'")
    assert page.run(POINTS) == counted(two_models, one + "true")
    for values, condition in (
        (dict(calibration="facts"), "calibration = 'facts'"),
        (dict(selector="cosine"), "calibration = 'facts' AND selector = 'cosine'"),
        (dict(removed="2"), "calibration = 'facts' AND selector = 'cosine' AND removed = 2"),
        (
            dict(repaired_by="ghost"),
            "calibration = 'facts' AND selector = 'cosine' AND removed = 2 AND repair = 'ghost' AND healing = 'none'",
        ),
    ):
        assert chosen(page, **values) == 1 + counted(two_models, one + condition)
        page.until(lambda wanted=condition: page.run(POINTS) == counted(two_models, one + wanted))
    assert "calibration=facts&selector=cosine" in page.run(
        "location.search"
    )  # a view can be shared
    page.run('document.querySelector("#choose button[type=reset]").click()')
    page.until(lambda: chosen(page) == counted(two_models, "model = 'a'"))
    assert chosen(page, keep="90") == 1 + counted(two_models, one + "own_kept >= 0.9")
    assert chosen(page, text="1.5") == 1 + counted(
        two_models, one + "own_kept >= 0.9 AND text_ratio <= 1.5"
    )
    assert chosen(page, keep="", text="", words="ghost lora") == counted(
        two_models, one + "repair = 'ghost' AND healing = 'lora'"
    )
    assert chosen(page, words="", model="b") == counted(two_models, "model = 'b'")


@in_browser
def test_a_point_leads_to_its_row_and_a_row_to_its_point(browser, file):
    page = opened(browser, file)
    place = page.run(
        """(() => { const point = [...document.querySelectorAll("#frontier-live .mark-symbol.role-mark path")].at(-1);
        point.scrollIntoView({ block: "center", behavior: "instant" });
        const box = point.getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2]; })()"""
    )
    page.press(*place)
    page.until(lambda: page.run('document.querySelectorAll("tr.chosen").length') == 1)
    page.run('document.querySelector("#table tbody tr:nth-child(3)").click()')
    page.until(
        lambda: (
            page.run('document.querySelectorAll("#frontier-live path[stroke=black]").length') == 1
        )
    )
    assert page.run('document.querySelector("tr.chosen").id') == "variant-2"


@in_browser
def test_the_table_is_sorted_and_downloaded_as_shown(browser, file, tmp_path):
    page = opened(browser, file)
    chosen(page, selector="cosine")
    page.run('document.querySelector("#table thead th:nth-child(9)").click()')
    kept = page.run(
        '[...document.querySelectorAll("#table tbody tr:not([hidden]) td:nth-child(9)")].map(c => c.dataset.value)'
    )
    numbers = [float(value) for value in kept if value]
    assert len(numbers) > 5 and numbers == sorted(numbers)
    page.ask("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.run('document.getElementById("download").click()')
    page.until(lambda: list(tmp_path.glob("*.csv")))
    lines = (tmp_path / "variants.csv").read_text(encoding="utf-8-sig").splitlines()
    assert len(lines) == 1 + len(kept) and lines[0].startswith("model,calibration,selector,removed")


@in_browser
def test_the_page_is_no_wider_than_a_phone(browser, file):
    page = opened(browser, file, 390)
    assert page.run("document.documentElement.scrollWidth") <= 390
    assert page.run(
        '[...document.querySelectorAll("figure svg")].every(e => !e.clientWidth || e.clientHeight > 100)'
    )


@in_browser
def test_without_scripts_the_same_figures_and_the_whole_table_stand_there(browser, file):
    browser.open(file, scripts=False)
    browser.ask(
        "Emulation.setScriptExecutionDisabled", value=False
    )  # for the questions below; the page has loaded
    still = "[...document.querySelectorAll('.still svg')].filter(e => e.clientHeight > 200).length"
    assert browser.run(still) == 4  # two figures of two models
    assert not browser.run('document.getElementById("choose").clientHeight')
    assert browser.run(
        'document.querySelectorAll("#table tbody tr:not([hidden])").length'
    ) == browser.run('JSON.parse(document.getElementById("data").textContent).variants.length')


def test_every_section_names_the_questions_that_it_answers(file):
    """So that a wrong number is traced from the page to its SQL, and no SQL stands in the code of the page."""
    page = file.read_text(encoding="utf-8")
    named = {}
    for section in re.split(r"<section", page)[1:]:
        name = re.search(r'id="([^"]+)"', section)[1]
        named[name] = re.findall(
            r"<code>(sql/queries/\w+\.sql)</code>", section.split("</section>")[0]
        )
        # The names are explained by the configuration; the facts list whole tables.
        assert named[name] or name in {"names", "facts"}, name
        assert all((ROOT / query).is_file() for query in named[name]), name
    assert {"take", "explore", "summary", "glance", "facts", *DRAWN} <= named.keys()
    folder = ROOT / "src/lamina_workflow/report"
    for module in [
        *folder.glob("figures/*.py"),
        *(folder / f"{name}.py" for name in ("page", "summary", "explorer")),
    ]:
        text = module.read_text(encoding="utf-8")
        # These three list what there is; no number stands on the page for it.
        lists = {"style", "calibration_size", "page"}
        assert module.stem in lists or not re.search(
            r"\bSELECT\b|\bFROM \w+ (WHERE|ORDER)", text
        ), module.name


def test_every_number_of_the_recommendation_has_its_count_and_interval(file):
    page = file.read_text(encoding="utf-8")
    cards = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page[: page.index('id="names"')], re.DOTALL)
    assert len(cards) > 10
    for name, text in cards:
        measured = re.search(r"±|\[.*, .*\]", text) and re.search(r"n = \d", text)
        assert measured or name in ("saves", "loads") or "too noisy to say" in text, (name, text)


def test_a_card_says_what_to_remove_how_it_loads_and_what_can_be_pasted(two_models):
    names = {
        "selectors": {"accuracy": "Removes the lowest unit."},
        "repairs": {"ghost": "One linear map."},
        "chosen": {"accuracy": "chosen by accuracy (iterative)"},
        "stock": {},
    }
    connection = database.connect_views(VIEWS, two_models.glob("*.parquet"))
    for facts, option in (
        ({"configuration": "config/mine.yaml"}, "CONFIG=config/mine.yaml "),
        ({}, ""),
    ):
        page = render_report(connection, [], TEMPLATE, facts, 0.5, None, names)
        commands = re.findall(r"<code>make export (.*?)</code>", page)
        assert commands and all(
            a.startswith(f"{option}VARIANT=a/") or "VARIANT=b/" in a for a in commands
        )
    cards = re.findall(r"<article.*?</article>", page, re.DOTALL)
    taken = [re.search(r'<p class="answer">(Remove .*?)</p>', card) for card in cards]
    assert any(found and re.search(r"layers? \d.* of 6, chosen by ", found[1]) for found in taken)
    for card in cards:
        if "repair: ghost" in card.split("<dl>")[0] and "make export" in card:
            assert "trust_remote_code" in card and "Best that loads everywhere" in card
        elif "make export" in card:
            assert "wherever the base model does" in card


def test_the_page_says_where_removed_halves_save_nothing_and_who_wrote_the_answers(
    two_models, tmp_path
):
    shutil.copytree(two_models, tmp_path / "halves")
    rows = parquet.read_table(two_models / "plans.parquet").to_pylist()
    halves = [row | {"unit": row["unit"] and f"{row['unit']}.mlp"} for row in rows]
    parquet.write_table(tmp_path / "halves/plans.parquet", parquet.from_rows("plans", halves))
    own = [
        row | {"n_asked": 80, "n_right": 64}
        for row in parquet.read_table(two_models / "calibrations.parquet").to_pylist()
    ]
    parquet.write_table(
        tmp_path / "halves/calibrations.parquet", parquet.from_rows("calibrations", own)
    )
    for folder, words in ((two_models, 0), (tmp_path / "halves", 1)):
        connection = database.connect_views(VIEWS, folder.glob("*.parquet"))
        page = render_report(connection, [], TEMPLATE, {}, 0.5, None, {"stock": {}})
        saved = re.findall(r"<dt>saves</dt><dd>(.*?)</dd>", page)
        assert saved and all(text.count("nothing in a stock export") == words for text in saved)
        assert page.count("choices, the model's own answers (64 of 80 right)") == words * len(own)


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


def test_a_ratio_of_times_that_says_nothing_is_said_to_be_noise():
    assert formatting.format_time_ratio(0.9, 0.01, 5).startswith("90.0 [")
    assert formatting.format_time_ratio(1.6, 0.8, 5) == "too noisy"
