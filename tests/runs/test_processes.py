"""Shares of a batch: nothing is lost, nothing read twice, and all processes count alike."""

import numpy as np
import pytest
import torch

from csvs import hourly, values_of, wide
from holdover.forecasting.data.named import open_table
from holdover.forecasting.data.options import SeriesOptions
from holdover.forecasting.data.prepare import prepare
from holdover.runs import processes
from holdover.runs.processes import (
    Share,
    all_gather_objects,
    own_share,
    rank0_broadcast,
    rank0_first,
    seed_rank,
)
from holdover.text.tokens import Tokens
from holdover.text.window_loader import Walk, training_rows
from holdover.tokenization.byte_encoder import ByteEncoder
from holdover.training.parallel import FSDP


@pytest.mark.parametrize("count", [1, 2, 5, 12])
@pytest.mark.parametrize("of", [1, 2, 3, 5])
def test_rows_are_dealt_out_once_and_evenly(count, of):
    parts = [Share(number, of).rows(count) for number in range(of)]
    assert [row for part in parts for row in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    idle = [Share(number, of).rows_or_idle(count) for number in range(of)]
    assert all(len(rows) > 0 for rows, _ in idle)
    assert sum(len(rows) for rows, without in idle if not without) == count
    dealt = [Share(number, of).dealt(range(count)) for number in range(of)]
    assert sorted(item for part in dealt for item in part) == list(range(count))


def test_the_shares_of_a_batch_are_the_batch():
    ids = np.arange(97, dtype=np.uint8)
    draw = np.random.default_rng(0)
    for marks in (None, draw.random(97) < 0.5):
        tokens = Tokens(ids, np.array([0, 13, 60, 97]), {}, ByteEncoder(), marks)
        walk = Walk(tokens, training_rows(tokens, 5, 0, 0), 4, 1)
        for number, whole in enumerate(walk.batches(3)):
            parts = [
                next(walk.batches(3, start=number, share=Share(process, 2))) for process in range(2)
            ]
            for name in ("ids", "targets", "mask", "begins"):
                together = torch.cat([getattr(part, name) for part in parts], 1)
                assert together.equal(getattr(whole, name))
            for part in parts:
                assert (part.scored, part.tokens) == (whole.scored, whole.tokens)
                assert part.ids.shape[1] in (2, 3)


def test_a_last_batch_of_fewer_windows_than_processes(tmp_path):
    data = wide(tmp_path / "series.csv", hourly(60), values_of(60, 2))
    options = SeriesOptions(data=str(data), past=8, ahead=2)
    windows = prepare(open_table(options), options).train
    rows = len(windows) - 1
    whole = list(windows.batches(rows))
    assert len(whole[-1].numbers) == 1
    first, second = (list(windows.batches(rows, share=Share(number, 2))) for number in range(2))
    assert [batch.idle for batch in first] == [False, True]
    assert [batch.idle for batch in second] == [False, False]
    for one, other, both in zip(first, second, whole, strict=True):
        assert one.scored == other.scored == both.scored
        assert one.tokens == other.tokens == both.tokens
    joined = np.concatenate([first[0].numbers, second[0].numbers])
    assert (joined == whole[0].numbers).all()


def test_alone_everything_is_as_it_is():
    assert own_share() == Share(0, 1)
    assert all_gather_objects(lambda: 7) == [7] and rank0_broadcast(lambda: 8) == 8
    assert rank0_first(lambda: 9) == 9
    with pytest.raises(KeyError):
        all_gather_objects(lambda: {}[1])


def test_processes_draw_other_numbers_and_the_first_goes_on(monkeypatch):
    drawn = {}
    for number, step in ((0, 3), (1, 3), (1, 4), (2, 3)):
        monkeypatch.setattr(processes, "own_share", lambda number=number: Share(number, 3))
        torch.manual_seed(0)
        seed_rank(0, step)
        drawn[number, step] = torch.rand(4).tolist()
    torch.manual_seed(0)
    assert drawn[0, 3] == torch.rand(4).tolist()
    assert len({tuple(values) for values in drawn.values()}) == 4


def test_single_numbers_are_not_held_in_parts():
    model = torch.nn.Module()
    model.gate = torch.nn.Parameter(torch.zeros(()))
    with pytest.raises(ValueError, match="The weight gate is a single number.*leave --shard out"):
        FSDP(model, [], torch.device("cpu"))
