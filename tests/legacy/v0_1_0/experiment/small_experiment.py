"""The experiment of which v0_1_0 holds records: two tiny trainings, with a state and without."""

from pathlib import Path

from holdover.experiment import (
    Answer,
    Claim,
    Expectation,
    Experiment,
    Figure,
    Layout,
    Published,
    Run,
    Series,
    Table,
    Value,
    of_evaluation,
)

TEXT = Path(__file__).parent.parent / "text.txt"
CARRIES = {"plain": {"carry": "none"}, "pooled": {"insert_layer": 1, "map_hidden": [4]}}


def measure(work):
    (work.folder / "measured").touch()
    common = {"data": str(TEXT), "new_document": "^#", "device": "cpu"}
    run = work.train(
        **common,
        model="gpt2",
        from_scratch=True,
        shape={"n_layer": 1, "n_embd": 8, "n_head": 1, "n_positions": 32},
        tokenizer="bytes",
        recurrence={"window": 8, **work.settings},
        max_steps=4,
        warm_up=0,
        rows=2,
        windows=2,
    )
    evaluated = work.evaluate(
        run, **common, split="all", draws=100, diagnose_windows=10, metrics=False
    )
    return of_evaluation(evaluated)


def runs(scale, seeds):
    return [
        Run(arm, measure, settings, seed) for seed in seeds for arm, settings in CARRIES.items()
    ]


def layout(scale):
    difference = Value("loss", "pooled", minus="plain", form="{:+.5f}")
    rows = [
        [
            arm,
            Value("loss", arm, form="{:.5f}"),
            Value("perplexity_per_word", arm),
            Published("30.5"),
        ]
        for arm in CARRIES
    ]
    return Layout(
        answers=[Answer("The state changes the loss by {}.", [difference])],
        claims=[Claim("A state helps.", "nowhere", [Expectation(difference, "below")])],
        tables=[Table("Losses", ["arm", "loss", "a word", "printed"], rows)],
        figures=[
            Figure(
                "Cost",
                "FLOPs",
                "loss",
                [
                    Series(
                        "both",
                        [(Value("flops_per_token", arm), Value("loss", arm)) for arm in CARRIES],
                    ),
                ],
            ),
        ],
    )


EXPERIMENT = Experiment(
    title="Small",
    question="Does a file of 0.1.0 open?",
    source="tests",
    runs=runs,
    layout=layout,
    seeds={"smoke": (0,), "small": (0, 1, 2)},
)
