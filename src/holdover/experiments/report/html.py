"""The sections of a report as a page."""

from collections.abc import Iterator, Sequence

from ...pages.wording import duration, escaped, size
from ..definition import Answer, Claim, Expectation, Table
from ..estimates import AGAINST, FOR, PARTLY_FOR
from ..report import samples
from .cells import as_html, measured
from .charts import draw
from .overview import BELOW, HEADS, INTERVALS, SIZES, VERDICTS, glance, summary
from .section import AWAY, CAME_OUT, Section, not_the_state, tally
from .threats import threats

KINDS = {
    "reproduced": "good",
    "partly reproduced": "open",
    "not reproduced": "bad",
    FOR: "open",
    PARTLY_FOR: "open",
    AGAINST: "open",
    "undecided": "open",
    "incomplete": "open",
    "not measured": "open",
    "holds": "good",
    "partly holds": "open",
    "does not hold": "bad",
}
QUESTION = (
    "Does a carried state improve what pretrained transformers do with long texts, and what does it "
    "cost?"
)


def head(sections: Sequence[Section]) -> str:
    runs = sum(len(section.records.found) for section in sections)
    seconds = sum(r["seconds"] for section in sections for r in section.records.found.values())
    return f"""<header>
<p class="eyebrow">holdover report</p>
<h1>{QUESTION}</h1>
<p class="lead">{runs} runs, {duration(seconds)} of computing. Every number below is looked up in their
records; point at one to see which.</p>
{_answers(sections)}
{_overview(sections)}
<details><summary>How to read it: scales, brackets, verdicts</summary>
<p class="hint">{SIZES}</p><p class="hint">{INTERVALS}</p><p class="hint">{VERDICTS}</p></details>
{_claims(sections)}
</header>"""


def _answers(sections: Sequence[Section]) -> str:
    lines = "".join(
        f'<div><dt><a href="#{section.anchor}">{escaped(section.about["title"])}</a> '
        f"<small>({section.scale})</small></dt><dd>{answers}</dd></div>"
        for section in sections
        if (answers := "".join(f"<p>{_answer(one, section)}</p>" for one in section.answers()))
    )
    if not lines:
        return ""
    return f'<h2>In short</h2><p class="hint">{BELOW}</p><dl class="facts answers">{lines}</dl>'


def _answer(answer: Answer, section: Section) -> str:
    return escaped(answer.text).format(*(measured(value, section) for value in answer.values))


def _overview(sections: Sequence[Section]) -> str:
    lines = "".join(
        f'<tr><th scope="row"><a href="#{section.anchor}">{escaped(section.about["title"])}</a> '
        f"<small>({section.scale})</small></th>"
        + "".join(f'<td class="note claim">{escaped(said)}</td>' for said in glance(section))
        + "</tr>"
        for section in sections
    )
    return f"<h2>What was measured</h2>{_rows('What was measured', HEADS, lines, words=True)}"


def _claims(sections: Sequence[Section]) -> str:
    lines = "".join(
        f'<tr><th scope="row"><span class="said {KINDS[verdict]}">{verdict}</span><br>'
        f"<small>{tally(outcomes, verdict, section.few(claim))}</small></th>"
        f'<td class="note claim">{escaped(claim.text)}{_decided_by(claim, section)}</td>'
        f'<td class="note claim"><a href="#{section.anchor}">{escaped(section.called)}</a></td></tr>'
        for checks in (False, True)
        for section in sections
        for claim, verdict, outcomes in section.judged()
        if claim.check == checks
    )
    if not lines:
        return ""
    table = _rows("Claims", ("verdict", "claim", "experiment"), lines, words=True)
    return f"<h2>Claims</h2><p>{escaped(summary(sections))}</p>{table}"


def _decided_by(claim: Claim, section: Section) -> str:
    """The number that decides a claim, where it is one; and of how many of several what is found is not
    what the state does."""
    if len(claim.expects) > 1:
        others = sum(section.besides(e, claim) is not None for e in claim.expects)
        return f"<br><small>{not_the_state(others)}</small>" if others else ""
    (only,) = claim.expects
    found = f"<br>{measured(only.value, section)} <small>(expected {only.expected})</small>"
    return found + _besides(only, claim, section)


def body(section: Section) -> str:
    about = section.about
    figures = "".join(draw(figure, section) for figure in section.layout.figures)
    parts = [
        f"<h2>{escaped(about['title'])} <small>({section.scale})</small></h2>",
        f"<p>{escaped(about['question'])}</p>",
        f"<p>{escaped(section.layout.done)}</p>" if section.layout.done else "",
        f'<p class="hint">{escaped(about["source"])}</p>',
        *_verdicts(section),
        *(_table(table, section) for table in section.layout.tables),
        f'<div class="figures">{figures}</div>' if figures else "",
        *(samples.as_html(one, section) for one in section.layout.samples),
        _cost(section),
        _threats(section),
        _provenance(section),
    ]
    return f'<section id="{section.anchor}">{"".join(parts)}</section>'


def _verdicts(section: Section) -> Iterator[str]:
    for claim, verdict, outcomes in section.judged():
        few = "".join(f"; {said}" for said in [section.few(claim)] if said)
        rests = "" if claim.rests_on is None else _expected(claim.rests_on, claim, section)
        details = "".join(
            _expected(e, claim, section, outcome)
            for e, outcome in zip(claim.expects, outcomes, strict=True)
        )
        yield (
            f'<div class="verdict {KINDS[verdict]}"><p><strong>{verdict.capitalize()}.</strong> '
            f"{escaped(claim.text)} <small>({escaped(claim.source)}{few})</small></p>"
            f"<ul>{rests}{details}</ul></div>"
        )


def _expected(e: Expectation, claim: Claim, section: Section, outcome: str | None = None) -> str:
    """A line of a claim; without an outcome what all others rest on."""
    found = section.rests(e) if outcome is None else CAME_OUT.get(outcome, outcome)
    return (
        f"<li>{escaped(e.said or e.value.arm)}: {measured(e.value, section)} "
        f"<small>expected {e.expected}: {found}</small>{_besides(e, claim, section)}</li>"
    )


def _besides(expected: Expectation, claim: Claim, section: Section) -> str:
    away = section.besides(expected, claim)
    return "" if away is None else f"<small>, {AWAY}</small> {measured(away, section)}"


def _table(table: Table, section: Section) -> str:
    lines = ""
    for row in table.rows:
        first, *rest = row
        label = escaped(first) if isinstance(first, str) else ""
        cells = "".join(as_html(cell, section) for cell in rest)
        lines += f'<tr><th scope="row">{label}</th>{cells}</tr>'
    note = f'<p class="hint">{escaped(table.note)}</p>' if table.note else ""
    return f"<h3>{escaped(table.title)}</h3>{_rows(table.title, table.columns, lines)}{note}"


def _rows(label: str, heads: Sequence[str], lines: str, *, words: bool = False) -> str:
    """A table that goes on to the side where there is no room; of words, a list on a phone."""
    top = "".join(f'<th scope="col">{escaped(name)}</th>' for name in heads)
    kind = ' class="words"' if words else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escaped(label)}">'
        f"<table{kind}><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _cost(section: Section) -> str:
    lines = ""
    for arm in section.arms():
        records = section.records.of(arm)
        seconds = sum(record["seconds"] for record in records)
        most = max(record["peak_memory"]["bytes"] for record in records)
        kinds = ", ".join(sorted({record["peak_memory"]["kind"] for record in records}))
        devices = ", ".join(sorted({record["provenance"]["device"] for record in records}))
        lines += (
            f'<tr><th scope="row">{escaped(arm)}</th><td class="cost-of-runs">{len(records)}</td>'
            f'<td class="cost-of-runs">{duration(seconds)}</td>'
            f'<td class="cost-of-runs">{size(most)}</td>'
            f'<td class="note">{escaped(kinds)}</td><td class="note">{escaped(devices)}</td></tr>'
        )
    heads = ("arm", "runs", "time", "peak memory", "of", "device")
    return f"<details><summary>What it cost</summary>{_rows('Costs', heads, lines)}</details>"


def _threats(section: Section) -> str:
    items = "".join(
        f"<div><dt>{kind}</dt><dd>{escaped(' '.join(said))}</dd></div>"
        for kind, said in threats(section).items()
        if said
    )
    return f'<h3>Threats to validity</h3><dl class="facts">{items}</dl>'


def _provenance(section: Section) -> str:
    lines = ""
    for name, record in section.records.found.items():
        made = record["provenance"]
        versions = ", ".join(f"{key} {value}" for key, value in made["versions"].items() if value)
        texts = ", ".join(
            f"{text['source']} {str(text.get('sha256', ''))[:12]}" for text in record["data"]
        )
        lines += (
            f'<tr><th scope="row">{escaped(name)}</th>'
            f'<td class="note"><code>{escaped(str(made["commit"]))}</code></td>'
            f'<td class="note">{escaped(made["date"])}</td>'
            f'<td class="note">{escaped(texts)}</td><td class="note">{escaped(versions)}</td>'
            f'<td class="note"><code>{escaped(made["command"])}</code></td></tr>'
        )
    heads = ("run", "commit", "date", "texts", "versions", "command")
    table = _rows("Records", heads, lines)
    return f"<details><summary>Where every number comes from</summary>{table}</details>"
