"""The page's sections, each from its part of the record. A part that is missing leaves no trace."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..pages import figures, heat
from .heat import Heat
from .wording import (
    count,
    duration,
    escaped,
    interval,
    number,
    percent,
    scaled,
    side,
    signed,
    signed_interval,
    size,
    where_zero_is,
)

Record = Mapping[str, Any]
# Letters of the continuation that are shown before the rest is folded away.
SHOWN_OF_WRITING = 1200
STAGES = {
    "read": "reading",
    "state": "examining the state",
    "write": "writing",
    "learn": "learning",
    "page": "this page",
}


def row_at(record: Record, twin: str) -> Record:
    """The twin's row at overlap 0."""
    return next(row for row in record["rows"] if row["twin"] == twin and row["overlap"] == 0)


def state_size(record: Record) -> float | None:
    if record["state"]:
        return record["state"]["bytes"]
    return record["writing"]["state_bytes"] if record["writing"] else None


def head(record: Record) -> str:
    octets = state_size(record)
    carried = "a small state" if octets is None else f"a state of {size(octets)}"
    return f"""<header>
<p class="eyebrow">holdover demo</p>
<h1><cite>{escaped(record["text"])}</cite>, read window by window, with a memory</h1>
<p class="lead">Two small language models, twins, read <cite>{escaped(record["text"])}</cite>:
{record["tokens"]:,} tokens, {record["window"]:,} at a time. The plain twin forgets every window it
leaves. The recurrent twin carries {carried} from each window into the next.</p>
{verdict(record)}
{_key_numbers(record, octets)}
</header>"""


def verdict(record: Record) -> str:
    """What the paired difference says, and no more than it says."""
    found = record["difference"]
    value = found["value"]
    said = {
        -1: ("good", "The carried state helps."),
        0: ("open", "The twins cannot be told apart."),
        1: ("bad", "With the carried state it is worse."),
    }
    kind, sentence = said[side(found)]
    than = "below" if value < 0 else "above"
    bounds = signed_interval(found)
    bounds = f" (95&nbsp;% interval {bounds} over {escaped(found['over'])})" if bounds else ""
    return (
        f'<p class="verdict {kind}"><strong>{sentence}</strong> Reading the same windows without '
        f"overlap, the recurrent twin&rsquo;s loss lies {abs(value):.3f} {escaped(found['unit'])} "
        f"{than} the plain twin&rsquo;s{bounds}: {where_zero_is(found)}. In perplexity that is "
        f"{percent(value)} {'less' if value < 0 else 'more'}.</p>"
    )


def _key_numbers(record: Record, octets: float | None) -> str:
    plain, recurrent = row_at(record, "plain"), row_at(record, "recurrent")
    found, writing = record["difference"], record["writing"]
    cards = [
        ("perplexity, plain twin", number(plain["perplexity"]), interval(plain)),
        ("perplexity, recurrent twin", number(recurrent["perplexity"]), interval(recurrent)),
        (
            f"{found['unit']}, recurrent minus plain",
            signed(found["value"], 3),
            signed_interval(found),
        ),
    ]
    if octets is not None:
        cards.append(("carried between windows", size(octets), "however long the text"))
    if writing:
        limit = record["positions"]
        through = f"through {count(limit, 'position')}" if limit else ""
        cards.append(("tokens written without a break", f"{writing['tokens']:,}", through))
    items = "".join(
        f"<div><dt>{escaped(label)}</dt><dd><b>{value}</b><small>{escaped(more)}</small></dd></div>"
        for label, value, more in cards
    )
    return f'<dl class="cards">{items}</dl>'


def reading(record: Record) -> str:
    return f"""<section id="reading"><h2>Reading</h2>
<p>Windows may overlap: a model then reads the last tokens of one window again at the beginning of the
next, and pays for them again. That is the plain twin&rsquo;s only way to know what came before.</p>
{_table(record)}
<p class="hint">Tokens a second and memory are those of as many windows side by side as a twin can use:
the plain one reads several of a novel at once, the recurrent one a single one.</p>
<div class="figures">
{figures.perplexity_against_flops(record["rows"])}
{figures.loss_by_position(record["loss_by_position"])}
</div></section>"""


def _table(record: Record) -> str:
    lines = "".join(
        f'<tr class="{escaped(row["twin"])}"><th scope="row">{escaped(row["twin"])}</th>'
        f"<td>{row['overlap']}</td><td><b>{number(row['perplexity'])}</b></td>"
        f"<td>{interval(row)}</td><td>{scaled(row['flops_per_token'])}</td>"
        f"<td>{row['tokens_per_second']:,.0f}</td><td>{size(row['peak_memory'])}</td>"
        f'<td class="note">{escaped(row["note"] or "")}</td></tr>'
        for row in record["rows"]
    )
    heads = (
        "twin",
        "overlap",
        "perplexity",
        "95 % interval",
        "FLOPs a token",
        "tokens/s",
        "peak memory",
        "",
    )
    top = "".join(f'<th scope="col">{name}</th>' for name in heads)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Table of all readings">'
        f"<table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def state(record: Record) -> str:
    found = record["state"]
    sentence = {
        1: "The state is used.",
        0: "The state cannot be told from one that is ignored.",
        -1: "The model does better with another state than with its own.",
    }[side(found["other"])]
    if side(found["other"]) == 0 and side(found["zeroed"]) > 0:
        sentence = "The model needs a state, but another passage&rsquo;s serves it as well."
    lines = "".join(
        f"<div><dt>{label}</dt><dd><b>{signed(part['value'], 4)}</b> {signed_interval(part, 4)} "
        f"<small>nats a token: {where_zero_is(part)}</small></dd></div>"
        for label, part in (
            ("The state taken away", found["zeroed"]),
            ("Another passage&rsquo;s state in its place", found["other"]),
        )
    )
    return f"""<section id="state"><h2>Is the state used?</h2>
<p><strong>{sentence}</strong> The recurrent twin reads the same windows again, but the state it is
handed is not its own. What that adds to its loss is what its own state was worth.</p>
<div class="figures"><dl class="facts stacked">{lines}</dl>
{figures.history(found["history"]) if found["history"] else ""}</div></section>"""


def writing(record: Record) -> str:
    found = record["writing"]
    prompt, text = _paragraphs(found["prompt"]), _paragraphs(found["text"])
    cut = _end_of_first_part(text)
    first, rest = escaped(text[:cut]), escaped(text[cut:].lstrip())
    stock = "was not seen to fail.</p>"
    if found["stock_error"]:
        stock = f"""stops after {count(found["stock_tokens"], "token")}:</p>
<pre class="error"><code>{escaped(found["stock_error"])}</code></pre>"""
    positions = "no limit of positions"
    if record["positions"]:
        positions = count(record["positions"], "position")
    folded = ""
    if rest:
        folded = f'<details><summary>Read on</summary><p class="text">{rest}</p></details>'
    return f"""<section id="writing"><h2>Writing past the end of its positions</h2>
<p>The model has {positions}. Asked to go on for longer, the stock model
{stock}
<p>With the carried state the recurrent twin wrote {count(found["tokens"], "token")} through
{count(found["windows"], "window")}, {found["tokens_per_second"]:,.0f} tokens a second, and took
{size(found["state_bytes"])} along from each to the next. Do not expect much sense of so small a
model.</p>
<div class="figures"><div class="written"><p class="text prompt">{escaped(prompt)}</p>
<p class="text">{first}</p>{folded}
<p class="hint">Set back and grey: the end of the prompt. The rest is the model&rsquo;s.</p></div>
{figures.memory(found) if found["memory"] else ""}</div></section>"""


def _paragraphs(text: str) -> str:
    """Without the ends of lines, which are those of a wider page; empty lines stay."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text.strip())


def _end_of_first_part(text: str) -> int:
    """Where to fold: at the first white space after enough letters; a short rest is not worth it."""
    if len(text) < 1.3 * SHOWN_OF_WRITING:
        return len(text)
    for place in range(SHOWN_OF_WRITING, len(text)):
        if text[place].isspace():
            return place
    return len(text)


def learning(record: Record) -> str:
    found = record["learning"]
    before, after, zeroed = found["before"], found["after"], found["after_zeroed"]
    changed = "fell" if after["value"] < before["value"] else "rose"
    known = " Much of that is the text itself, which it now knows." if changed == "fell" else ""
    lines = "".join(
        f"<div><dt>{label}</dt><dd><b>{number(part['value'])}</b> {interval(part)}</dd></div>"
        for label, part in (
            ("Before", before),
            ("After", after),
            ("After, the state taken away", zeroed),
            ("After, with another passage&rsquo;s state", found.get("after_other")),
        )
        if part
    )
    return f"""<section id="learning"><h2>A minute of training</h2>
<p>A new state was then trained into the plain twin, on the beginning of
<cite>{escaped(found["text"])}</cite>: {count(found["steps"], "step")},
{count(found["tokens"], "token")}, windows of {found["window"]}, in {duration(found["seconds"])}. On the
end, which it was not shown, perplexity {changed} from {number(before["value"])} to
{number(after["value"])}.{known} What the state gives shows when it is taken away or swapped; a model
that was trained with a state can be at a loss without any, so the swap is the stricter question.</p>
<div class="figures"><div><dl class="facts">{lines}</dl>
<p class="hint">Perplexities on the held-out end, with 95&nbsp;% intervals.</p></div>
{figures.learning(found["curve"]) if found["curve"] else ""}</div></section>"""


def books(record: Record) -> str:
    found = record["books"]
    difference = found["difference"]
    sentence = {
        -1: "there, too, the carried state helps" if side(record["difference"]) < 0 else "it helps",
        0: "the twins cannot be told apart",
        1: "the recurrent twin is worse",
    }[side(difference)]
    return f"""<section id="books"><h2>Other books</h2>
<p>One novel is one novel. Over {escaped(difference["over"])} the plain twin&rsquo;s perplexity is
{number(found["plain"])} and the recurrent twin&rsquo;s {number(found["recurrent"])}, a difference of
{signed(difference["value"], 3)} {escaped(difference["unit"])} {signed_interval(difference)}: {sentence}.
Record: <code>{escaped(found["record"])}</code>.</p></section>"""


def novel(record: Record, tokens: Heat) -> str:
    found = heat.windows(tokens)
    bounds = heat.levels(tokens.saved)
    otherwise = record.get("otherwise", "without")
    against = record.get("saved_against")
    against = f" Saved means fewer bits than {escaped(against)}." if against else ""
    return f"""<section id="novel"><h2>The text, token by token</h2>
<p>Every token has the colour of what the carried state saved or cost in predicting it, in bits.
{heat.summary(tokens)}{against} Point at a word, or tap it, for its numbers.</p>
<h3>From the first window to the last</h3>
{heat.overview(found)}
<p class="hint">Each bar leads to its window. Up: bits saved. Down: bits cost.</p>
{heat.passages(found)}
<p class="hint">Bits are sums over whole windows; bold is the token that counted most.</p>
<h3 id="text">The text</h3>
{heat.legend(bounds)}
<div id="book" class="text" data-else="{otherwise}">{heat.novel(found, bounds)}</div></section>"""


def foot(record: Record) -> str:
    made = record["provenance"]
    facts = {
        "command": f"<code>{escaped(made['command'])}</code>",
        "commit": f"<code>{escaped(made['commit'] or 'not known')}</code>",
        "date": escaped(made["date"]),
        "device": escaped(made["device"]),
        "versions": escaped(
            ", ".join(f"{name} {version}" for name, version in made["versions"].items() if version)
        ),
    }
    if record["seconds"]:
        facts["time"] = escaped(
            ", ".join(
                f"{STAGES.get(name, name)} {duration(seconds)}"
                for name, seconds in record["seconds"].items()
                if seconds is not None
            )
        )
    items = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items())
    return f'<footer><h2>Where this comes from</h2><dl class="facts">{items}</dl></footer>'


# Anchor, name in the list of contents, and what makes the section out of a record that has it.
SECTIONS: tuple[tuple[str, str, Callable[[Record], str]], ...] = (
    ("reading", "CarryInputs", reading),
    ("state", "The state", state),
    ("writing", "Writing", writing),
    ("learning", "Learning", learning),
    ("books", "Other books", books),
)


def body(record: Record, tokens: Heat) -> Iterator[str]:
    """The list of contents and all sections that this record has."""
    present = [section for section in SECTIONS if section[0] == "reading" or record[section[0]]]
    links = "".join(f'<a href="#{anchor}">{name}</a>' for anchor, name, _ in present)
    yield f'<nav aria-label="Contents">{links}<a href="#novel">The text</a></nav>'
    for _, _, made in present:
        yield made(record)
    yield novel(record, tokens)
