"""The verb qa: train a reader of long contexts, score it, ask it a question."""

from .verb import OptionsVerb, TrainingVerb

VERBS = (
    TrainingVerb(
        name="qa train",
        help="train a reader on HotpotQA or a file in its format",
        description="Train a pretrained encoder to answer questions over contexts of many windows, with "
        "the question at the beginning of each. With --recurrence none every window is read alone: the "
        "plain twin.",
        options="questions.options:QAOptions",
        run="questions.training:train_reader",
        given_as="language.options:for_plain_twin",
    ),
    OptionsVerb(
        name="qa eval",
        help="exact match and F1 of a reader's answers, and whether its state is used",
        description="Score a reader's answers and compare them with other readers': one table, one JSON "
        "record, and the answers in the format of HotpotQA's own script.",
        options="questions.eval_options:QAEvalOptions",
        run="questions.evaluation:evaluate_reader",
    ),
    OptionsVerb(
        name="qa ask",
        help="ask a reader one question about a text of any length",
        description="Print a reader's answer to a question about a text, its probability, and its "
        "position in the text.",
        options="questions.eval_options:AskOptions",
        run="questions.asking:run_ask",
    ),
)
