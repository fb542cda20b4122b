"""The demo's page: complete, safe, honest, and readable in a browser on a phone and a desk."""

import copy
import html
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import browser
from holdover.pages.demo import verdict, write_demo_page, written_text
from holdover.pages.lens import Heat, colour, levels, passages, windows

NOVEL = Path(__file__).parents[2] / "src" / "holdover" / "bundled" / "the_time_machine.txt"
WINDOW = 300


def bounded(value: float, reach: float) -> dict[str, float]:
    return {"value": value, "low": value - reach, "high": value + reach}


def row(twin: str, overlap: int, perplexity: float, note: str | None = None) -> dict:
    return {
        "twin": twin,
        "overlap": overlap,
        "perplexity": perplexity,
        "low": perplexity - 1.1,
        "high": perplexity + 1.2,
        "flops_per_token": 1.3e7 * WINDOW / (WINDOW - overlap) * (1.02 if twin != "plain" else 1),
        "tokens_per_second": 5100.0 - 15 * overlap,
        "peak_memory": 512_000_000,
        "note": note,
    }


def losses(gain: float) -> list[float | None]:
    random = np.random.default_rng(1)
    places = np.arange(1, WINDOW)
    known = 3.55 + 2.2 / places**0.6 - gain / places**0.4 + random.normal(0, 0.03, len(places))
    return [None, *known.tolist()]


RECORD = {
    "text": "The Time Machine",
    "tokens": 51_660,
    "window": WINDOW,
    "positions": 512,
    "seconds": {"read": 61.2, "state": 14.0, "write": 20.1, "learn": 63.0, "page": 2.0},
    "rows": [
        *(row("plain", o, p) for o, p in ((0, 41.2), (10, 40.5), (30, 39.9), (50, 39.6))),
        row("recurrent", 0, 40.3),
        *(row("recurrent", o, p, "trained at overlap 0") for o, p in ((10, 40.1), (50, 39.9))),
    ],
    "difference": {
        **bounded(-0.021, 0.004),
        "unit": "nats a token",
        "over": "172 blocks of 20 windows",
    },
    "state": {
        "zeroed": bounded(0.031, 0.006),
        "other": bounded(0.024, 0.005),
        "history": [
            {"windows": n, "above_own": 0.031 * 0.4**n, "low": 0.02 * 0.4**n, "high": 0.04 * 0.4**n}
            for n in range(7)
        ],
        "bytes": 16384,
    },
    "loss_by_position": {"plain": losses(0.0), "recurrent": losses(0.25)},
    "writing": {
        "prompt": "He was off. “I shall return,” he had said.",
        "text": NOVEL.read_text(encoding="utf-8")[5000:14000],
        "tokens": 2000,
        "windows": 7,
        "tokens_per_second": 130.0,
        "memory": [[tokens, 5.1e8 + 1e5 * (tokens % 300)] for tokens in range(100, 2001, 100)],
        "stock_error": "IndexError: index out of range in self",
        "stock_tokens": 512,
        "state_bytes": 16384,
    },
    "learning": {
        "text": "The Time Machine",
        "steps": 60,
        "tokens": 90_000,
        "window": 64,
        "seconds": 60.0,
        "curve": [[step, 3.9 + 0.7 / step**0.5 + 0.05 * (step % 3)] for step in range(1, 61)],
        "before": bounded(55.1, 2.0),
        "after": bounded(48.7, 1.8),
        "after_zeroed": bounded(50.2, 1.9),
    },
    "books": {
        "plain": 45.1,
        "recurrent": 43.9,
        "difference": {**bounded(-0.027, 0.006), "unit": "nats a token", "over": "22 books"},
        "record": "results/bundled_model/books.json",
    },
    "provenance": {
        "command": "holdover demo --output runs/demo",
        "commit": "0123456789abcdef",
        "date": "2026-01-01T00:00:00+00:00",
        "device": "CPU, 2 cores",
        "versions": {"holdover": "0.1.0", "torch": "2.11.0", "peft": None},
    },
}


def heat_of(texts: list[bytes], saved: list[float] | np.ndarray | None = None) -> Heat:
    numbers = np.zeros(len(texts)) if saved is None else np.asarray(saved, dtype=np.float64)
    return Heat(texts, numbers, np.full(len(texts), 5.0), np.arange(len(texts)) // WINDOW)


def novel_in_tokens(wanted: int) -> list[bytes]:
    """The bundled novel in word-like tokens; some are cut at any byte, as byte-level BPE does."""
    words = [
        word.encode() for word in re.findall(r"\s*\S{1,8}|\s+", NOVEL.read_text(encoding="utf-8"))
    ]
    random = np.random.default_rng(0)
    tokens: list[bytes] = []
    for word in words:
        cut = int(random.integers(1, len(word))) if len(word) > 1 else 0
        tokens += [word[:cut], word[cut:]] if cut and random.random() < 0.25 else [word]
    return (tokens * (wanted // len(tokens) + 1))[:wanted]


@pytest.fixture(scope="module")
def whole_novel() -> Heat:
    tokens = novel_in_tokens(52_000)
    random = np.random.default_rng(3)
    saved = 0.03 + random.standard_t(2.5, len(tokens)) * 0.35
    saved[0] = np.nan
    bits = np.abs(random.normal(5, 2, len(tokens))) + np.abs(saved)
    return Heat(tokens, saved, bits, np.arange(len(tokens)) // WINDOW + 1)


@pytest.fixture(scope="module")
def page(whole_novel, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("page") / "demo.html"
    write_demo_page(path, RECORD, whole_novel)
    return path


def written(folder: Path, record: dict, heat: Heat) -> str:
    write_demo_page(folder / "demo.html", record, heat)
    return (folder / "demo.html").read_text(encoding="utf-8")


def book_text(page: str) -> str:
    """The novel on a page, with the tags removed."""
    part = page.split('<div id="book" class="text" data-else="without">')[1].split("</section>")[0]
    return html.unescape(re.sub(r"<[^>]*>", "", part))


def test_the_text_is_the_novel_letter_by_letter(page, whole_novel):
    shown = book_text(page.read_text(encoding="utf-8"))
    assert shown.encode() == b"".join(whole_novel.texts)


def test_numbers_and_tokens_of_a_window_match(page):
    for line in re.findall(r'data-n="([^"]*)">(.*?)</div>', page.read_text(), re.S):
        assert len(line[0].split(" ")) == line[1].count("<i")


def test_a_cut_character_makes_one_piece(tmp_path):
    dash = "—".encode()
    heat = heat_of([b"way", dash[:1], dash[1:2], dash[2:] + b"as", b" we"], [1, 2, np.nan, 4, 8])
    pieces = windows(heat)[0].pieces
    assert [(piece.text, piece.tokens, piece.saved) for piece in pieces] == [
        ("way", 1, 1.0),
        ("—as", 3, 6.0),
        (" we", 1, 8.0),
    ]
    assert ' data-n="100,500 600,1500,3 800,500"' in written(tmp_path, RECORD, heat)


@pytest.mark.parametrize("end", [b"\xe2\x80", b"\xff\xfe", b""])
def test_bytes_that_are_no_text_are_shown_as_such(end, tmp_path):
    shown = book_text(written(tmp_path, RECORD, heat_of([b"a\r\n", b"\0", end])))
    assert shown.startswith("a\r\n\ufffd")


def test_whatever_a_text_or_record_holds_is_escaped(tmp_path):
    evil = "</div><script>alert('1')</script>\"&<img src=x onerror=y>"
    record = copy.deepcopy(RECORD)
    record["text"] = record["saved_against"] = evil
    record["writing"] |= {"prompt": evil, "text": evil, "stock_error": evil}
    record["provenance"] |= {
        "command": evil,
        "device": evil,
        "commit": evil,
        "versions": {evil: evil},
    }
    record["books"]["record"] = record["learning"]["text"] = evil
    record["rows"][0]["note"] = record["rows"][0]["twin"] + evil
    page = written(tmp_path, record, heat_of([evil.encode(), b" ", evil.encode()], [9, 0, -9]))
    assert page.count("<script") == 1
    assert "<img" not in page and "\"'" not in page.split("</style>")[1].split("<script")[0]
    assert book_text(page) == f"{evil} {evil}"


def test_nothing_is_known_of_any_token(tmp_path):
    page = written(tmp_path, RECORD, heat_of([b"a", b" b"], [np.nan, np.nan]))
    assert "Nothing was predicted." in page
    assert "nan" not in page.split("</style>")[1].split("<script")[0].lower()
    assert page.count("<i class=n>") == 2


def test_an_empty_novel_is_no_reason_to_fail(tmp_path):
    assert book_text(written(tmp_path, RECORD, heat_of([]))) == ""


class Loads(HTMLParser):
    """Collects what a browser would fetch, and tags left open."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.found += [
            f"{tag} {name}={v}" for name, v in attrs if name in ("src", "srcset", "data")
        ]
        self.found += [
            f"{tag} {v}" for name, v in attrs if name == "href" and not (v or "").startswith("#")
        ]
        if tag == "link":
            self.found.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_one_small_file_that_loads_nothing(page):
    text = page.read_text(encoding="utf-8")
    assert page.stat().st_size < 3_000_000
    assert "http:" not in text and "https:" not in text and "url(" not in text
    assert "@import" not in text
    loads = Loads()
    loads.feed(text)
    assert loads.found == [] and loads.open == []


def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    targets = set(re.findall(r' id="(\w+)"', text))
    assert set(re.findall(r'href="#(\w+)"', text)) <= targets
    assert len(re.findall(r'<li><a href="#w\d+">', text)) == 20


@pytest.mark.parametrize("part", ["state", "writing", "learning", "books"])
def test_a_part_that_was_skipped_leaves_no_trace(part, tmp_path):
    page = written(tmp_path, RECORD | {part: None}, heat_of([b"a"]))
    assert f'id="{part}"' not in page and f'href="#{part}"' not in page
    assert "None" not in page


def test_all_parts_skipped(tmp_path):
    bare = RECORD | dict.fromkeys(("state", "writing", "learning", "books"))
    page = written(tmp_path, bare, heat_of([b"a"]))
    assert "carries a small state" in page and 'id="novel"' in page


@pytest.mark.parametrize(
    ("difference", "words", "other_words"),
    [
        (bounded(-0.021, 0.004), "helps", "includes zero"),
        (bounded(-0.003, 0.004), "do not differ clearly", "excludes zero"),
        (bounded(0.003, 0.004), "do not differ clearly", "excludes zero"),
        (bounded(0.021, 0.004), "worse", "helps"),
        ({"value": -0.1, "low": None, "high": None}, "no interval", "helps"),
    ],
)
def test_the_verdict_says_what_the_interval_says(difference, words, other_words):
    sentence = " ".join(verdict({**difference, "unit": "nats a token", "over": "9 blocks"}))
    assert words in sentence and other_words not in sentence


def test_perplexity_without_intervals(tmp_path):
    record = copy.deepcopy(RECORD)
    for one in record["rows"]:
        one["low"] = one["high"] = None
    assert "None" not in written(tmp_path, record, heat_of([b"a"]))


def test_colours_rise_with_bits_and_differ_by_sign():
    bounds = levels(np.random.default_rng(0).normal(0, 1, 5000))
    assert 0 < bounds[0] < bounds[1] < bounds[2]
    assert [colour(sign * bounds[2], bounds) for sign in (1, -1)] == ["s3", "c3"]
    assert colour(0.0, bounds) == "" and colour(float("nan"), bounds) == "n"


def test_where_nothing_differs_no_colour_is_shown():
    saved = np.full(100, 1e-6)
    assert {colour(value, levels(saved)) for value in saved} == {""}


def test_passages_are_ranked_and_never_claim_the_wrong_sign():
    saved = [3.0] * WINDOW + [-1.0] * WINDOW + [5.0] * WINDOW
    helped, hurt = passages(windows(heat_of([b" w"] * len(saved), saved)))
    assert [window.number for window in helped] == [2, 0]
    assert [window.number for window in hurt] == [1]


@pytest.fixture(scope="module")
def chromium():
    opened = browser.Browser(browser.find_or_skip())
    yield opened
    opened.close()


SIZES = {"phone": (390, 844), "desk": (1280, 900)}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.sampled(4)
def test_a_browser_shows_it(size, scheme, page, chromium):
    import matplotlib.image

    width, height = SIZES[size]
    chromium.open(page, width, height, scheme)
    assert chromium.value("innerWidth") == width
    assert chromium.value("document.documentElement.scrollWidth") <= width
    assert chromium.value("document.querySelectorAll('#book .s3').length") > 100
    paper = chromium.value("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", paper))) < 60) == (scheme == "dark")
    assert shown_ink(matplotlib.image.imread(io.BytesIO(chromium.screenshot()))) > 0.03

    x, y = bring_into_view(chromium, "#w9 .s3")
    colours = matplotlib.image.imread(io.BytesIO(chromium.screenshot()))[..., :3]
    assert len(np.unique((colours * 255).astype(int).reshape(-1, 3), axis=0)) > 50
    assert chromium.value("document.documentElement.scrollWidth") <= width
    chromium.tap(x, y) if size == "phone" else chromium.point_at(x, y)
    chromium.wait_for("!document.getElementById('tip').hidden")
    assert re.search(
        r"saved \d+\.\d\d bits\s*\d+\.\d\d bits with the state, \d+\.\d\d without\s*window 9",
        chromium.value("document.getElementById('tip').innerText"),
    )
    edges = (
        "(({left, right}) => [left, right])(document.getElementById('tip').getBoundingClientRect())"
    )
    left, right = chromium.value(edges)
    assert left >= 0 and right <= width
    assert chromium.complaints == [] and chromium.requested == [page.as_uri()]


def test_a_link_leads_to_its_window(page, chromium):
    chromium.open(page, *SIZES["desk"], "light")
    chromium.value("location.hash = '#w150'")
    chromium.wait_for("Math.abs(document.getElementById('w150').getBoundingClientRect().top) < 40")


def test_it_is_readable_without_a_script(page, chromium):
    import matplotlib.image

    chromium.open(page, *SIZES["phone"], "light", script=False)
    assert shown_ink(matplotlib.image.imread(io.BytesIO(chromium.screenshot()))) > 0.03
    assert chromium.complaints == []


def bring_into_view(chromium, selector: str) -> tuple[float, float]:
    """The middle of an element's first line, once the text around it has been laid out."""
    chromium.value(f"document.querySelector('{selector}').scrollIntoView({{block: 'center'}})")
    chromium.wait_for(
        f"(({{top, bottom}}) => top > 0 && bottom < innerHeight)"
        f"(document.querySelector('{selector}').getBoundingClientRect())"
    )
    chromium.screenshot()
    return tuple(
        chromium.value(
            f"(box => [box.x + box.width / 2, box.y + box.height / 2])"
            f"(document.querySelector('{selector}').getClientRects()[0])"
        )
    )


def shown_ink(image: np.ndarray) -> float:
    """The share of pixels that differ from the corner's."""
    return float((np.abs(image - image[0, 0]).max(axis=-1) > 0.1).mean())


def test_lines_of_the_written_text_end_where_the_page_does(tmp_path):
    text = "Two\nlines of one.\n\nAnother\nparagraph."
    record = RECORD | {"writing": RECORD["writing"] | {"prompt": "A\nb.", "text": text}}
    assert written_text(record["writing"]).first == "Two lines of one.\n\nAnother paragraph."
    page = written(tmp_path, record, heat_of([b"a"]))
    assert "Two lines of one.\n\nAnother paragraph." in page and ">A b.<" in page
