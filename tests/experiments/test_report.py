"""A report: every number out of a record, on a page that can be read anywhere."""

import html
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import browser
import holdover.pages
from experiments import experiment_file
from holdover.cli import entry as cli
from holdover.experiments.definition import Expectation, Figure, Layout, Series, Value
from holdover.experiments.estimates import Estimate, estimate
from holdover.experiments.options import ReportOptions, RunOptions
from holdover.experiments.records import Records, read_records
from holdover.experiments.report.cells import shown
from holdover.experiments.report.charts import STYLES, points_of
from holdover.experiments.report.overview import DIFFERENCES
from holdover.experiments.report.section import Section
from holdover.experiments.report.write import gather, report
from holdover.experiments.runner import run_experiment
from holdover.pages.wording import MINUS
from report_page import drawn_html

COUNTS = {"words": 1_500_000, "bytes": 8_000_000}


@pytest.fixture
def results(tmp_path):
    given = {"results": tmp_path / "results", "output": tmp_path / "runs", "device": "cpu"}
    run_experiment(experiment_file(tmp_path), RunOptions(**given))
    return tmp_path / "results"


def page_of(results):
    path = results.parent / "report.html"
    report(ReportOptions(results=results, output=path, scales=("smoke",)))
    return path


class Numbers(HTMLParser):
    """What stands in measured places, and table cells that are not measured, published or words."""

    def __init__(self):
        super().__init__()
        self.measured, self.strays, self.stack = [], [], []

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "path", "rect", "circle", "br"):
            self.stack.append((tag, dict(attributes)))
        if dict(attributes).get("class") == "measured":
            self.measured.append((dict(attributes), []))

    def handle_endtag(self, tag):
        while self.stack and self.stack.pop()[0] != tag:
            pass

    def handle_data(self, data):
        classes = [attributes.get("class", "") for _, attributes in self.stack]
        if "measured" in classes:
            self.measured[-1][1].append(data)
        elif any(tag == "td" for tag, _ in self.stack) and re.search(r"\d", data):
            words = {"published", "note", "note claim", "cost-of-runs"}
            if not words & set(classes):
                self.strays.append(data)


def numbers_of(page):
    found = Numbers()
    found.feed(page.read_text())
    return found


def test_every_number_is_what_its_records_say(results):
    numbers = numbers_of(page_of(results))
    records = read_records(results / "nothing" / "smoke")
    assert len(numbers.measured) == 7 and not numbers.strays
    for told, text in numbers.measured:
        value = Value(
            told["data-metric"],
            told["data-arm"],
            told.get("data-minus"),
            told["data-form"],
            told.get("data-minus-metric"),
            "data-share" in told,
            unit=float(told.get("data-unit", 1)),
            over_units="data-over-units" in told,
            largest="data-largest" in told,
        )
        found = estimate(value, records)
        assert "".join(text).split() == " ".join(shown(value, found)).split()
        assert all(f"{name}" in told["title"] for name in found.sources)


def test_a_deleted_record_takes_its_numbers_along(results):
    before = page_of(results).read_text()
    assert "<b>2.910</b>" in before and "Reproduced." in before
    for path in (results / "nothing" / "smoke").glob("with-state-*.json"):
        path.unlink()
    page = page_of(results)
    after = page.read_text()
    assert "2.910" not in after and "<b>3.010</b>" in after and "Not measured." in after
    assert len(numbers_of(page).measured) == 1
    assert "2.910" not in page.with_suffix(".md").read_text()


def test_a_claim_is_incomplete_until_all_its_runs_are_there(results):
    (results / "nothing" / "smoke" / "with-state-seed2.json").unlink()
    page = page_of(results)
    said, beside = page.read_text(), page.with_suffix(".md").read_text()
    assert "Incomplete." in said and "Reproduced." not in said
    assert "**incomplete** (so far it holds; two seeds): The state helps." in beside
    assert "| 8 of 9 runs: 3 arms, 2 to 3 seeds |" in beside
    assert "So far 8 of 9 runs were made" in beside
    # A file of records from before runs were planned in it.
    path = results / "nothing" / "smoke" / "experiment.json"
    about = json.loads(path.read_text())
    assert about["planned"] == {"plain": 3, "with state": 3, "late": 3}
    for key in ("planned", "done"):
        del about[key]
    path.write_text(json.dumps(about))
    page = page_of(results)
    assert "Points for it." in page.read_text()
    assert "**points for it** (two seeds)" in page.with_suffix(".md").read_text()


def test_a_measure_that_no_run_has_is_not_a_missing_run(results):
    for path in (results / "nothing" / "smoke").glob("plain-*.json"):
        made = json.loads(path.read_text())
        del made["measures"]["loss"]
        path.write_text(json.dumps(made))
    page = page_of(results)
    beside = page.with_suffix(".md").read_text()
    assert "| plain | none |  | 30.47 |" in beside and "| never | \u2013 |" in beside
    assert 'title="no run has it">none<' in page.read_text()


def test_brackets_and_what_was_done_are_explained(results):
    page = page_of(results)
    for said in (page.read_text(), page.with_suffix(".md").read_text()):
        assert "Brackets: 95 % intervals. With three or more seeds" in said
        assert "Nine documents were read." in said


def test_the_tables_in_markdown(results):
    said = page_of(results).with_suffix(".md").read_text()
    assert "| plain | 3.010 [2.985, 3.035] |  | 30.47 |" in said
    assert "| state | 2.910 [2.885, 2.935] | \u22120.100" in said
    assert "| never | \u2013 |" in said
    assert "**reproduced**: The state helps." in said
    assert "1 claim to reproduce: reproduced 1." in said


def test_it_says_what_the_records_show(results):
    said = html.unescape(page_of(results).read_text())
    assert "Nothing <much>" in said
    assert "3 seeds per arm" in said and "A loss is not a use." in said
    assert "Not measured yet: never run." in said
    assert "Measured only on a text (test)." in said
    assert "a text abcabcabcabc" in said


def test_first_it_says_what_was_measured(results):
    """On what, how much of it, with how many seeds, and where: of the records alone."""
    record = results / "nothing" / "smoke" / "plain-seed0.json"
    made = json.loads(record.read_text())
    made["data"] = [
        {"source": "books", "split": "train"},
        {"source": "books", "split": "test", "documents_read": 22, "counts": COUNTS},
        {"source": "power", "split": "test", "windows": 2857},
    ]
    record.write_text(json.dumps(made))
    said = page_of(results).with_suffix(".md").read_text()
    (line,) = (line for line in said.splitlines() if line.startswith("| Nothing"))
    _, _, runs, scored, computed, _ = line.split("|")
    assert runs.strip() == "9 runs: 3 arms, 3 seeds"
    amount = "books (test): 22 documents, 1.5 million words, 8 million bytes"
    assert scored.strip() == f"{amount}; power (test): 2,857 windows; a text (test)"
    assert "CPU" in computed and computed.strip().endswith(" s)")


def curves(*arms):
    """A section whose records hold these arms' curves alone."""
    found = {
        arm: {
            "run": arm,
            "arm": arm,
            "seed": 0,
            "curves": {"c": [[1, 0.5], [10, 0.4], [1000, 0.1]]},
        }
        for arm in arms
    }
    return Section("name", "small", {}, Layout(), Records(None, found))


def test_series_look_the_same_whichever_others_there_are():
    names = [str(number) for number in range(STYLES)]
    figure = Figure("F", "x", "y", [Series(name, curve=(name, "c")) for name in names])
    for drawn in (drawn_html(figure, curves(*names)), drawn_html(figure, curves("7"))):
        assert 'class="line series7"' in drawn
    assert "series0" not in drawn_html(figure, curves("7"))
    # Told apart without colours: by their dashes, of which one series has none.
    style = (Path(holdover.pages.__file__).parent / "page.css").read_text()
    dashes = re.findall(r"\.line\.series(\d) \{ stroke-dasharray: ([\d ]+);", style)
    assert len({dash for _, dash in dashes}) == len(dashes) == STYLES - 1


def test_a_name_looks_the_same_in_all_figures_of_a_section():
    one = Figure("F", "x", "y", [Series(name, curve=(name, "c")) for name in ("a", "b")])
    other = Figure("G", "x", "y", [Series("b", curve=("b", "c"))])
    section = replace(curves("a", "b"), layout=Layout(figures=[one, other]))
    assert 'class="line series1"' in drawn_html(other, section)
    # More names than looks: each figure counts its own.
    names = [str(number) for number in range(STYLES + 1)]
    many = [
        Figure("F", "x", "y", [Series(name, curve=(name, "c")) for name in chosen])
        for chosen in (names[:STYLES], [names[0], names[STYLES]])
    ]
    section = replace(curves(*names), layout=Layout(figures=many))
    assert 'class="line series1"' in drawn_html(many[1], section)


def test_a_curve_is_the_mean_of_all_seeds_wherever_they_were_looked_at():
    """Tokens read until a validation differ a little from seed to seed, and a run may end early."""
    found = [[[0, 9.0], [1000, 2.0], [2000, 1.0]], [[0, 9.0], [1010, 4.0]]]
    records = {
        f"a-{seed}": {"run": f"a-{seed}", "arm": "a", "seed": seed, "curves": {"c": curve}}
        for seed, curve in enumerate(found)
    }
    section = Section("name", "small", {}, Layout(), Records(None, records))
    series = Series("a", curve=("a", "c"))
    assert [(point.x, point.y) for point in points_of(series, section)] == [(0, 9.0), (1005, 3.0)]
    drawn = drawn_html(Figure("F", "x", "y", [series], later=True), section)
    assert "Curves: means of 2 seeds." in drawn
    # Without the beginning, where nothing has been learnt.
    line, _ = re.findall(r'class="line series0" d="([^"]+)"', drawn)
    assert line.startswith("M") and "L" not in line


def test_a_curve_above_another_is_subtracted_seed_by_seed():
    found = {"a": [(0, 3.0), (1, 5.0)], "b": [(1, 1.0), (2, 9.0)]}
    records = {
        f"{arm}-{seed}": {
            "run": f"{arm}-{seed}",
            "arm": arm,
            "seed": seed,
            "curves": {"c": [[10, level], [20, level / 2]]},
        }
        for arm, levels in found.items()
        for seed, level in levels
    }
    section = Section("name", "small", {}, Layout(), Records(None, records))
    drawn = points_of(Series("a", curve=("a", "c"), above="b"), section)
    assert [(point.x, point.y) for point in drawn] == [(10, 4.0), (20, 2.0)]
    assert not points_of(Series("a", curve=("a", "c"), above="never run"), section)


def test_bytes_are_shown_in_a_unit():
    value = Value("memory", "plain", unit=1e9)
    found = Estimate(3.05e9, 3.0e9, 3.1e9, "3 seeds", ("a",), 3)
    assert shown(value, found) == ("3.05", "[3.00, 3.10]")
    assert Expectation(value, "below", 2e9).expected == "below 2"


def test_points_are_joined_as_they_are_given_and_say_what_they_are(results):
    section = gather(ReportOptions(results=results, scales=("smoke",)))[0]
    loss = Value("loss", "plain")
    figure = Figure("F", "x", "y", [Series("both", [(2.0, loss), (1.0, loss)], ["two", "one"])])
    drawn = drawn_html(figure, section)
    line, _ = re.findall(r'class="line series0" d="(M[^"]+)"', drawn)
    first, second = (float(x) for x in re.findall(r"[ML]([\d.]+) ", line))
    assert first > second and ">two</text>" in drawn
    # The legend's marker is the chart's.
    assert drawn.count('<rect class="marker series0"') == 3 and "<circle" not in drawn


def test_what_is_ours_to_ask_holds_or_does_not(results):
    path = results / "nothing" / "smoke" / "experiment.json"
    about = json.loads(path.read_text())
    about["claims"][0]["ours"] = True
    path.write_text(json.dumps(about))
    page = page_of(results)
    assert "<strong>Holds.</strong>" in page.read_text()
    beside = page.with_suffix(".md").read_text()
    assert "**holds**: The state helps." in beside and "1 claim of our own: holds 1." in beside


def test_one_seed_is_said_beside_a_verdict_and_marked_behind_an_interval(results):
    """Where there is but one, intervals are over its text."""
    path = results / "nothing" / "smoke" / "experiment.json"
    about = json.loads(path.read_text())
    about["planned"] = {}
    path.write_text(json.dumps(about))
    for record in (results / "nothing" / "smoke").glob("*-seed[12].json"):
        record.unlink()
    page = page_of(results)
    said, beside = page.read_text(), page.with_suffix(".md").read_text()
    assert "one seed" in said and "**points for it** (one seed): The state helps." in beside
    assert re.search(r"\| plain \| 3\.000 \[2\.\d+, 3\.\d+\]\u2020 \|", beside)
    assert "draw from the same texts (\u2020)" in beside
    # It is no verdict: another seed may say something else.
    assert "Points for it." in said and "reproduced 1" not in beside


def test_a_seed_that_lies_far_from_the_others_is_named(results):
    for seed, loss in enumerate((2.90, 2.91, 4.5)):
        path = results / "nothing" / "smoke" / f"with-state-seed{seed}.json"
        made = json.loads(path.read_text())
        made["measures"]["loss"] = loss
        path.write_text(json.dumps(made))
    said = page_of(results).with_suffix(".md").read_text()
    assert "One seed of with state lies far from the others (loss: 2.9, 2.91, 4.5)." in said
    assert "One seed of plain" not in said


@pytest.mark.parametrize(
    ("costs", "its_base", "told"),
    # The last one is better with its state taken away.
    [(0.01, None, True), (0.09, None, False), (0.01, 0.0, False), (-0.09, None, True)],
)
def test_a_gain_that_is_not_the_states_is_told(results, costs, its_base, told):
    """The state's arm is better by 0.1; its base has none, or one that it is compared with."""
    given = {"with-state": costs, "plain": its_base}
    for arm, value in given.items():
        for path in (results / "nothing" / "smoke").glob(f"{arm}-*.json"):
            made = json.loads(path.read_text())
            if value is not None:
                made["measures"]["state_zeroed"] = value
            path.write_text(json.dumps(made))
    page = page_of(results)
    for said in (page.read_text(), page.with_suffix(".md").read_text()):
        assert ("explains less than half of the difference" in said) == told
        assert ("and removing the state costs" in said) == told
    # And then it does not count.
    assert (f"open, and removing the state costs {costs:+.4f}".replace("-", MINUS) in said) == told
    assert ("**undecided**" in said) == told and ("**reproduced**" in said) != told


def test_a_loss_that_is_not_the_states_is_told_too(results):
    """The arm may also be worse, for example after a different training."""
    for path in (results / "nothing" / "smoke").glob("with-state-*.json"):
        made = json.loads(path.read_text())
        made["measures"]["loss"], made["measures"]["state_zeroed"] = 3.1, 0.001
        path.write_text(json.dumps(made))
    said = page_of(results).with_suffix(".md").read_text()
    assert "fails, and removing the state costs +0.0010" in said and "**not reproduced**" in said
    # Where it is the state's doing, nothing else is.
    for path in (results / "nothing" / "smoke").glob("with-state-*.json"):
        made = json.loads(path.read_text())
        made["measures"]["state_zeroed"] = -0.09
        path.write_text(json.dumps(made))
    assert "and removing the state" not in page_of(results).with_suffix(".md").read_text()


def test_what_is_read_otherwise_is_not_asked_whether_it_is_the_states(results):
    """As at another overlap: the models differ in more than a state."""
    path = results / "nothing" / "smoke" / "experiment.json"
    about = json.loads(path.read_text())
    about["claims"][0]["expects"][0]["value"]["minus_metric"] = "loss@50"
    path.write_text(json.dumps(about))
    for record in (results / "nothing" / "smoke").glob("*-seed?.json"):
        made = json.loads(record.read_text())
        made["measures"] |= {"loss@50": 3.5, "state_zeroed": 0.0}
        record.write_text(json.dumps(made))
    for record in (results / "nothing" / "smoke").glob("plain-*.json"):
        made = json.loads(record.read_text())
        del made["measures"]["state_zeroed"]
        record.write_text(json.dumps(made))
    said = page_of(results).with_suffix(".md").read_text()
    assert "**reproduced**" in said and "and removing the state" not in said


def test_a_gain_at_equal_flops_is_asked_whether_it_is_the_states(results):
    """It is by itself a difference to a model without one."""
    path = results / "nothing" / "smoke" / "experiment.json"
    about = json.loads(path.read_text())
    value = about["claims"][0]["expects"][0]["value"]
    value["metric"], value["minus"] = "above_at_equal_flops", None
    path.write_text(json.dumps(about))
    for costs, said in ((0.01, "open, and removing the state costs +0.0100"), (0.2, "holds")):
        for record in (results / "nothing" / "smoke").glob("with-state-*.json"):
            made = json.loads(record.read_text())
            made["measures"] |= {"above_at_equal_flops": -0.1, "state_zeroed": costs}
            record.write_text(json.dumps(made))
        assert f"expected below 0: {said}\n" in page_of(results).with_suffix(".md").read_text()


@pytest.mark.parametrize(("used", "outcome"), [(0.5, "holds"), (0.0, "open"), (-0.5, "open")])
def test_what_a_claim_rests_on_has_to_hold_itself(results, used, outcome):
    path = results / "nothing" / "smoke" / "experiment.json"
    about = json.loads(path.read_text())
    value = {"metric": "used", "arm": "with state", "form": "{:+.2f}"}
    about["claims"][0]["rests_on"] = {"value": value, "side": "above", "said": "it is used"}
    path.write_text(json.dumps(about))
    for record in (results / "nothing" / "smoke").glob("with-state-*.json"):
        made = json.loads(record.read_text())
        made["measures"]["used"] = used
        record.write_text(json.dumps(made))
    page = page_of(results)
    said, beside = html.unescape(page.read_text()), page.with_suffix(".md").read_text()
    assert f"expected below 0: {outcome}" in said and f"expected below 0: {outcome}" in beside
    assert ("**reproduced**" in beside) == (outcome == "holds")
    assert "it is used: " in said and "it is used: " in beside
    assert ("so the whole claim is open" in beside) == (outcome == "open")


def test_a_claim_is_incomplete_until_what_it_rests_on_is_there(results):
    path = results / "nothing" / "smoke" / "experiment.json"
    about = json.loads(path.read_text())
    value = {"metric": "loss", "arm": "later", "form": "{:.2f}"}
    about["claims"][0]["rests_on"] = {"value": value, "side": "above", "said": "it is there"}
    about["planned"]["later"] = 1
    path.write_text(json.dumps(about))
    assert "**incomplete**" in page_of(results).with_suffix(".md").read_text()


def test_draws_from_one_training_are_no_verdict(results):
    """However many there are."""
    path = results / "nothing" / "smoke" / "experiment.json"
    about = json.loads(path.read_text())
    about["claims"][0]["expects"][0]["value"]["over_units"] = True
    path.write_text(json.dumps(about))
    said = page_of(results).with_suffix(".md").read_text()
    assert "**points for it** (one training): The state helps." in said


def test_first_of_all_it_answers(results):
    """In lines whose numbers are looked up, too, as long as all of them are there."""
    page = page_of(results)
    said, beside = page.read_text(), page.with_suffix(".md").read_text()
    assert beside.startswith(
        f"## In short\n\n{DIFFERENCES}\n\n* Without a state 3.010 [2.985, 3.035], with \u22120.100"
    )
    assert said.index("In short") < said.index("What was measured") < said.index("Claims")
    assert "Of what was never run" not in said + beside
    for path in (results / "nothing" / "smoke").glob("with-state-*.json"):
        path.unlink()
    assert "In short" not in page_of(results).read_text()


def test_experiments_stand_in_their_places_and_checks_behind_claims(results):
    def moved(name, place, source):
        folder = results / name / "smoke"
        if name != "nothing":
            shutil.copytree(results / "nothing" / "smoke", folder)
        about = json.loads((folder / "experiment.json").read_text())
        about |= {"title": name, "place": place}
        about["claims"][0] |= {"source": source, "text": f"{name} claims."}
        (folder / "experiment.json").write_text(json.dumps(about))

    moved("a-last-one", 3, "nowhere")
    moved("checked", 1, "a check of the task")
    moved("nothing", 2, "nowhere")
    said = page_of(results).read_text()
    places = [said.index(f"<h2>{name} ") for name in ("checked", "nothing", "a-last-one")]
    assert places == sorted(places)
    claims = [said.index(f"{name} claims.") for name in ("nothing", "a-last-one", "checked")]
    assert claims == sorted(claims)


def test_training_is_not_asked_whether_it_was_the_states(results):
    """A check compares with what was not trained."""
    path = results / "nothing" / "smoke" / "experiment.json"
    about = json.loads(path.read_text())
    about["claims"][0]["source"] = "a check"
    path.write_text(json.dumps(about))
    for record in (results / "nothing" / "smoke").glob("with-state-*.json"):
        made = json.loads(record.read_text())
        made["measures"]["state_zeroed"] = 0.0
        record.write_text(json.dumps(made))
    assert "and removing the state" not in page_of(results).read_text()


def test_texts_of_which_no_size_is_known_are_counted_by_what_was_scored(results):
    for path in (results / "nothing" / "smoke").glob("plain-*.json"):
        made = json.loads(path.read_text())
        right = {"value": 0.5, "over": "10 books, 2,000 contexts"}
        made["measures"] = {"right": right} | made["measures"]
        path.write_text(json.dumps(made))
    said = page_of(results).with_suffix(".md").read_text()
    assert "| a text (test); up to 10 books, 2,000 contexts, 9 documents |" in said


def test_an_axis_of_several_powers_of_ten():
    figure = Figure("F", "x", "y", [Series("a", curve=("a", "c"))], log_x=True)
    drawn = drawn_html(figure, curves("a"))
    ticks = re.findall(r'<text class="tick"[^>]*text-anchor="middle">([^<]*)<', drawn)
    assert [tick for tick in ticks if tick] == ["1", "10", "100", "1000"]
    (line,) = re.findall(r'class="line series0" d="(M[^"]+L[^"]+)"', drawn)
    first, second, third = (float(x) for x in re.findall(r"[ML]([\d.]+) ", line))
    assert third - second == pytest.approx(2 * (second - first), abs=0.2)
    assert "Bars" not in drawn


def test_samples_are_the_notes_of_the_first_seeds(results):
    page = page_of(results)
    said, beside = page.read_text(), page.with_suffix(".md").read_text()
    for number in (1, 2):
        assert f"{number} &lt;times&gt; of 0" in said
        assert f"> {number} \\<times\\> of 0\n>\n> * **plain**: it \\* is 3.00\n" in beside
    assert "<dt>with state</dt><dd>it * is\n2.90</dd>" in said and "of 1" not in beside
    (results / "nothing" / "smoke" / "with-state-seed0.json").unlink()
    page = page_of(results)
    # The next seed's were asked something else.
    assert "**plain**: it" in page.with_suffix(".md").read_text()
    assert "<dt>with state</dt>" not in page.read_text()
    for path in (results / "nothing" / "smoke").glob("[pw]*.json"):
        path.unlink()
    page = page_of(results)
    assert "What they say" not in page.read_text() + page.with_suffix(".md").read_text()


def test_smoke_is_left_out_unless_asked_for(results, tmp_path, capsys):
    words = ["report", "--results", str(results), "--output", str(tmp_path / "page.html")]
    assert cli.main(words) == 2
    assert "There are no records" in capsys.readouterr().err
    assert cli.main([*words, "--scales", "smoke"]) == 0
    assert (tmp_path / "page.html").exists() and (tmp_path / "page.md").exists()


@pytest.fixture(scope="module")
def chromium():
    opened = browser.Browser(browser.find_or_skip())
    yield opened
    opened.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.sampled(4)
def test_a_browser_shows_it(width, scheme, results, chromium):
    chromium.open(page_of(results), width, 900, scheme)
    assert chromium.value("document.documentElement.scrollWidth") <= width
    # Sentences are not cut off, however narrow the page is.
    table = "document.querySelector('table.words')"
    assert chromium.value(f"{table}.scrollWidth <= {table}.parentElement.clientWidth")
    assert chromium.value("document.querySelectorAll('figure svg').length") >= 2
    # Dashes and markers tell series apart where colours do not.
    assert (
        chromium.value("getComputedStyle(document.querySelector('.line.series0')).strokeDasharray")
        != "none"
    )
    assert not chromium.complaints and len(chromium.screenshot()) > 10_000


def test_a_tapped_number_says_where_it_comes_from(results, chromium):
    """A title needs a pointer, and a phone has none."""
    chromium.open(page_of(results), 360, 900, "light")
    number = "document.querySelector('td .measured')"
    told = chromium.value(f"{number}.title")
    chromium.value(f"{number}.scrollIntoView({{block: 'center'}}), {number}.click()")
    tip = "document.getElementById('tip')"
    shown = chromium.value(f"[...{tip}.children].map(line => line.textContent)")
    assert chromium.value(f"{tip}.hidden") is False
    assert shown[1:] == told.split("; ") and "-seed" in shown[-1]
    box = chromium.value(f"(({tip}.getBoundingClientRect())).right")
    assert 0 < box <= 360
    chromium.value(f"{number}.click()")
    assert chromium.value(f"{tip}.hidden") is True and not chromium.complaints


def test_the_committed_page_says_what_the_committed_records_say(tmp_path):
    """Made again from results/, it is the same: no number on it is older than its record."""
    root = Path(__file__).parents[2]
    path = tmp_path / "report.html"
    report(ReportOptions(results=root / "results" / "experiments", output=path))
    for name in ("report.html", "report.md"):
        committed = (root / "docs" / "results" / name).read_text()
        assert committed == path.with_name(name).read_text(), (
            f"docs/results/{name} is not that of the records: make it again with "
            "holdover report --output docs/results/report.html"
        )
