"""An experiment that takes no time: its runs count how often they were done."""

import multiprocessing
import os
import sys
import textwrap

FILE = """
    import json
    from holdover.experiments import (
        Answer, Claim, Expectation, Experiment, Figure, Layout, Published, Run, Samples, Series, Table,
        Threats, Value,
    )

    PLAIN, STATE = {PLAIN}, {STATE}
    BOTH = ("plain", "with state")

    def measure(work):
        times = work.folder / "times"
        times.write_text(times.read_text() + "x" if times.exists() else "x")
        if (work.folder / "stop").exists() or work.settings.get("fails"):
            raise ValueError("it was asked to fail")
        work.read({{"source": "a text", "split": "test", "sha256": "abc" * 20, "other": 1}})
        nats = work.settings["nats"] + 0.01 * work.seed
        spread = work.settings["spread"]
        sums = [nats * 10, nats * 10 + spread, nats * 10 - spread] * 3
        return {{
            "loss": {{"value": nats, "over": "9 documents", "sums": sums, "counts": [10] * 9}},
            "flops": 100 + work.settings["nats"],
            "curves": {{"by position": [[1, nats], [2, nats - 0.5]]}},
            "notes": [
                {{"asked": f"{{number}} <times> of {{work.seed}}", "said": f"it * is\\n{{nats:.2f}}"}}
                for number in (1, 2)
            ],
        }}

    def chosen(work):
        (found,) = work.found.values()
        return {{"loss": found["loss"]["value"] - 1.0, "flops": 1.0}}

    def runs(scale, seeds):
        found = []
        for seed in seeds:
            found.append(Run("plain", measure, {{"nats": PLAIN, "spread": 0.5}}, seed))
            found.append(Run("with state", measure, {{"nats": STATE, "spread": 0.25}}, seed))
            found.append(Run("late", chosen, {{}}, seed, (f"plain-seed{{seed}}",)))
        return found

    def layout(scale):
        return Layout(
            done="Nine documents were read.",
            answers=[
                Answer("Without a state {{}}, with {{}} of it.", [
                    Value("loss", "plain", form="{{:.3f}}"),
                    Value("loss", "with state", "plain", "{{:+.3f}}"),
                ]),
                Answer("Of what was never run {{}}.", [Value("loss", "never run")]),
            ],
            claims=[Claim("The state helps.", "nowhere", [
                Expectation(Value("loss", "with state", "plain", "{{:+.3f}}"), "below", said="loss"),
            ])],
            tables=[Table("Losses", ["arm", "loss", "difference", "printed"], [
                ["plain", Value("loss", "plain", form="{{:.3f}}"), "", Published("30.47")],
                ["state", Value("loss", "with state", form="{{:.3f}}"),
                 Value("loss", "with state", "plain", "{{:+.3f}}"), Published("29.01")],
                ["never", Value("loss", "never run"), "", ""],
            ])],
            figures=[
                Figure("Cost", "FLOPs", "loss", [
                    Series("both", [(Value("flops", arm), Value("loss", arm)) for arm in BOTH]),
                ]),
                Figure("Curves", "position", "loss", [Series("plain", curve=("plain", "by position"))]),
            ],
            samples=[Samples("What they say", BOTH, given="asked", made="said", note="Unasked.")],
            threats=Threats(construct=["A loss is not a use."]),
        )

    EXPERIMENT = Experiment(
        title="Nothing <much>", question="Does it work?", source="nowhere",
        runs=runs, layout=layout, seeds={{"smoke": (0, 1, 2), "small": (0,)}},
    )
"""


def experiment_file(folder, plain=3.0, state=2.9):
    path = folder / "nothing.py"
    text = textwrap.dedent(FILE).replace("{PLAIN}", str(plain)).replace("{STATE}", str(state))
    path.write_text(text.replace("{{", "{").replace("}}", "}"))
    return path


# A process imports holdover once, and runs are forks of it.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["holdover.cli.entry", "holdover.experiments.runner", "holdover.language.training"]
)


class Forked:
    """Of subprocess.Popen what runs side by side need, without the seconds that a start takes."""

    def __init__(self, command, stdout, stderr, env):
        assert command[:3] == [sys.executable, "-m", "holdover"] and stdout is stderr
        self.process = FORKS.Process(target=_live, args=(command[3:], stdout.name, env))
        self.process.start()

    def poll(self):
        return self.process.exitcode

    returncode = property(poll)

    def wait(self):
        self.process.join()
        return self.returncode

    def terminate(self):
        self.process.terminate()


def _live(words, log, environment):
    from holdover.cli import entry as cli

    os.environ.clear()
    os.environ.update(environment)
    said = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.exit(cli.main(words))
