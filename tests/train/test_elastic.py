"""A step that replicas make together, with a stand-in for those who agree on it."""

import random
from types import SimpleNamespace

import pytest
import torch

import longhaul.train.elastic
from longhaul.core.records import Decision, StepRecord
from longhaul.data.batches import IGNORED, Batch, BatchRequest, own_share
from longhaul.parallel.replicas import Deal
from longhaul.run.train.elastic import place_of
from longhaul.train.coordinator import Coordinator, OneProcessOnly
from longhaul.train.elastic import ElasticStep, Outrun, Place
from longhaul.train.trainer import Trainer

RATE = 1e-3


class Agreement:
    """Stands for `Place` and `Replicas`: says what it was told to say."""

    def __init__(self, deals: list[Deal | None], commits: list[bool]) -> None:
        self.replicas = self
        self.figures = torch.tensor([1.25, 2.5, 0.0])
        self._deals, self._commits = deals, commits
        self.summed = 0

    def meet(self) -> Deal | None:
        return self._deals.pop(0)

    def own_deal(self, deal: Deal) -> Deal:
        return deal

    def sum(self, tensors: list[torch.Tensor]) -> None:
        self.summed += 1

    def commit(self) -> bool:
        return self._commits.pop(0)


def elastic(trainer: Trainer, place: Agreement | None) -> ElasticStep:
    step = trainer.training_step
    step.__class__ = ElasticStep
    step.place = place
    return step


def batch_of(trainer: Trainer) -> Batch:
    return trainer._parts.batches.read(BatchRequest(0, 16, 16))


def weights(step: ElasticStep) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in step.model.parameters()]


def test_a_batch_is_dealt_out_whole_among_any_number_of_replicas(make_trainer) -> None:
    batch = batch_of(make_trainer())
    dice = random.Random(0)
    for size in (1, 2, 3, 5, 16, 19):
        shares = [own_share(batch, rank, size) for rank in range(size)]
        real = [share for share in shares if (share.targets_BT != IGNORED).any()]
        assert torch.equal(torch.cat([share.tokens_BT for share in real]), batch.tokens_BT)
        assert torch.equal(torch.cat([share.targets_BT for share in real]), batch.targets_BT)
        assert {share.num_targets for share in shares} == {batch.num_targets}
        assert all(len(share.tokens_BT) > 0 for share in shares)
        assert dice.choice(shares).next_draw == batch.next_draw


def test_processes_of_one_replica_are_given_equally_many_sequences(make_trainer) -> None:
    batch = batch_of(make_trainer())
    for size in (2, 6, 7, 19):
        shares = [own_share(batch, rank, size, even=True) for rank in range(size)]
        assert {len(share.tokens_BT) for share in shares} == {-(-16 // size)}
        assert {len(share.source_B) for share in shares} == {-(-16 // size)}
        real = [share.targets_BT[(share.targets_BT != IGNORED).any(1)] for share in shares]
        assert torch.equal(torch.cat(real), batch.targets_BT)


@pytest.mark.parametrize("size", [2, 3, 17])
def test_gradients_of_all_replicas_add_up_to_that_of_one_process(make_trainer, size: int) -> None:
    trainer = make_trainer("model.dropout=0")
    step, batch = elastic(trainer, None), batch_of(trainer)
    loss = step.compute(batch, 16)
    whole = [weight.grad.clone() for weight in step.model.parameters()]
    step.optimizer.clear_gradients()
    # One process after the other adds to the same gradients what each would send to the others.
    losses = [step.compute(own_share(batch, rank, size), 16) for rank in range(size)]
    assert sum(losses) == pytest.approx(float(loss), rel=1e-6)
    for weight, expected in zip(step.model.parameters(), whole, strict=True):
        torch.testing.assert_close(weight.grad, expected, rtol=1e-4, atol=1e-7)


def test_a_step_in_which_somebody_is_lost_is_made_again_from_the_same_batch(make_trainer) -> None:
    plain = make_trainer("model.dropout=0")
    expected = plain.training_step(batch_of(plain), 16, RATE, False)
    trainer = make_trainer("model.dropout=0")
    # The first time half of it was this replica's, and the rest was lost with another one.
    place = Agreement([Deal(1, 2), Deal(0, 1)], [False, True])
    step = elastic(trainer, place)
    made = step(batch_of(trainer), 16, RATE, False)
    assert place.summed == 2
    assert torch.equal(made, expected)
    assert torch.equal(place.figures, expected)
    for weight, alike in zip(weights(step), plain.training_step.model.parameters(), strict=True):
        assert torch.equal(weight, alike)


def test_what_is_computed_beside_the_steps_is_summed_with_nobody(make_trainer) -> None:
    trainer = make_trainer("model.dropout=0")
    place = Agreement([], [])
    step = elastic(trainer, place)
    with step.aside():
        step.compute(batch_of(trainer), 16)
    assert place.summed == 0


def test_a_step_that_others_have_made_is_not_made_again(make_trainer) -> None:
    trainer = make_trainer()
    place = Agreement([None], [])
    step = elastic(trainer, place)
    before = weights(step)
    assert torch.equal(step(batch_of(trainer), 16, RATE, False), place.figures)
    assert all(map(torch.equal, before, weights(step)))
    assert place.summed == 0


def test_gauges_of_a_lost_step_are_forgotten(make_trainer) -> None:
    trainer = make_trainer("model.dropout=0")
    step = elastic(trainer, Agreement([Deal(0, 1), Deal(0, 1)], [False, True]))
    figures = step(batch_of(trainer), 16, RATE, True)
    plain = make_trainer("model.dropout=0")
    expected = plain.training_step(batch_of(plain), 16, RATE, True)
    assert torch.equal(figures.nan_to_num(), expected.nan_to_num())


def test_who_has_no_place_among_replicas_trains_as_one_process(make_trainer) -> None:
    trainer, plain = make_trainer(), make_trainer()
    assert place_of(plain._parts) is None
    step = elastic(trainer, None)
    assert place_of(trainer._parts) is None
    figures = step(batch_of(trainer), 16, RATE, False)
    assert torch.equal(figures, plain.training_step(batch_of(plain), 16, RATE, False))
    step.place = Agreement([], [])
    assert place_of(trainer._parts) is step.place


class Meeting:
    """Stands for `Replicas`: the states that others give are told to it."""

    def __init__(self, number, lighthouse, generation, give, take, most_s, within) -> None:
        self.generation = generation
        self.give, self._take = give, take
        self.others: list = []
        self.led = 0

    def begin(self) -> tuple[Deal, bool]:
        state = self.others.pop(0) if self.others else None
        if state is not None:
            self._take(state)
        return Deal(0, 1), state is not None

    def sum(self, tensors: list[torch.Tensor]) -> None:
        pass

    def commit(self) -> bool:
        return True

    def lead(self) -> None:
        self.led += 1

    def close(self) -> None:
        pass


@pytest.fixture
def placed(make_trainer, monkeypatch: pytest.MonkeyPatch):
    """Trainers with a place among replicas."""
    monkeypatch.setattr(longhaul.train.elastic, "Replicas", Meeting)

    def make(number: int) -> tuple[Trainer, Place]:
        trainer = make_trainer("batch.stages=[]", "model.dropout=0")
        step, progress = elastic(trainer, None), trainer._parts.progress
        return trainer, Place(number, "", step, progress, 1.0)

    return make


def train(trainer: Trainer, place: Place, steps: int) -> None:
    made = 0
    for record in trainer.steps():
        if isinstance(record, StepRecord):
            place.remember(record)
            made += 1
            if made == steps:
                trainer.stop()


def test_who_comes_back_goes_on_from_a_peer_bit_by_bit(placed) -> None:
    (peer, its_place), (back, place) = placed(1), placed(2)
    assert (place.replicas.generation, placed(0)[1].replicas.generation) == (0, 1)
    train(peer, its_place, 5)
    place.replicas.others = [its_place.replicas.give()]
    assert place.join()
    assert back.position == peer.position
    state, other = (t._parts.step for t in (back, peer))
    for mine, others in (
        (state.model.state_dict(), other.model.state_dict()),
        (state.optimizer.tensors(), other.optimizer.tensors()),
    ):
        assert mine.keys() == others.keys()
        assert all(torch.equal(mine[name], others[name]) for name in mine)
    assert [record.step for record in place.missed(2)] == [3, 4, 5]
    batch = batch_of(peer)
    assert torch.equal(state(batch, 16, RATE, False), other(batch, 16, RATE, False))


def test_processes_of_all_replicas_stand_in_one_row(placed) -> None:
    _, place = placed(1)
    assert place.own_deal(Deal(1, 3)) == Deal(1, 3)
    rows = []
    for replica in range(3):
        for rank in range(2):
            place._ranks = SimpleNamespace(rank=rank, size=2)
            rows.append(place.own_deal(Deal(replica, 3)))
    assert rows == [Deal(number, 6) for number in range(6)]


def test_who_was_healed_knows_by_whom(placed) -> None:
    (_, its_place), (_, place) = placed(2), placed(1)
    place.replicas.others = [its_place.replicas.give()]
    assert place.peer is None
    assert place.join()
    assert place.peer == 2


def test_a_step_that_only_the_others_agreed_on_is_taken_over(placed) -> None:
    (ahead, its_place), (behind, place) = placed(1), placed(2)
    train(ahead, its_place, 4)
    train(behind, place, 3)
    place.replicas.others = [its_place.replicas.give()]
    assert place.meet() is None
    assert torch.equal(place.figures, its_place.figures)
    assert behind.position == ahead.position
    assert place.meet() == Deal(0, 1), "it has met the others for the next step already"


@pytest.mark.parametrize("steps", [3, 6])
def test_another_state_than_the_next_one_is_no_result_of_a_step(placed, steps: int) -> None:
    (other, its_place), (behind, place) = placed(1), placed(2)
    train(other, its_place, steps)
    train(behind, place, 3)
    place.replicas.others = [its_place.replicas.give()]
    with pytest.raises(Outrun, match=f"at step 3, the others at step {steps}"):
        place.meet()
    assert behind.position == other.position


def test_a_decision_of_the_pilot_is_no_result_of_a_step_either(placed) -> None:
    (leader, its_place), (_, place) = placed(0), placed(1)
    train(leader, its_place, 1)
    its_place.lead()
    assert its_place.replicas.led == 1
    place.replicas.others = [its_place.replicas.give()]
    with pytest.raises(Outrun):
        place.meet()


def test_what_is_given_to_a_peer_runs_no_code(placed) -> None:
    _, place = placed(0)
    assert all(isinstance(part, str | torch.Tensor) for part in place.replicas.give().values())


def test_whatever_is_decided_the_others_have_by_the_pilots_state(placed) -> None:
    leader, place = placed(0)
    leader.coordinator = Coordinator(place)
    skip = {"begin": 8, "end": 16}
    leader.apply(Decision(kind="skip", attempt=1, step=0, time=0.0, who="us", reason="", data=skip))
    assert place.replicas.led == 1
    train(leader, place, 2)
    assert place.replicas.led == 2, "whoever went on without it goes on from its ledger"
    leader.roll_back_in_memory(0)
    assert place.replicas.led == 3
    with pytest.raises(OneProcessOnly):
        leader.borrow_step(1)
