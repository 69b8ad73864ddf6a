"""Tests of the letter index against a naive model."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from deadletter.core.box_types import FailureGroup
from deadletter.core.letter_index import OTHER_GROUP, LetterIndex
from deadletter.core.times import clamp

SMALL = st.integers(0, 200_000)


class LetterIndexModel(RuleBasedStateMachine):
    """Add, settle and drop at random, and compare with plain dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.index = LetterIndex()
        self.letters: dict[int, tuple[str, int]] = {}
        self.settled: set[int] = set()

    @rule(offset=SMALL, group=st.sampled_from("abcd"), when=st.integers(-(2**63), 2**64))
    def add(self, offset, group, when):
        self.index.add(offset, group, f"T{group}", "Transient", when)
        self.letters.setdefault(offset, (group, clamp(when)))

    @rule(offsets=st.lists(SMALL, max_size=5))
    def settle(self, offsets):
        self.index.settle(offsets)
        self.settled.update(offsets)

    @precondition(lambda self: self.letters)
    @rule(choice=st.data())
    def settle_a_letter(self, choice):
        self.settle([choice.draw(st.sampled_from(sorted(self.letters)))])

    @rule(start=SMALL)
    def drop_below(self, start):
        self.index.drop_below(start)
        self.letters = {offset: letter for offset, letter in self.letters.items() if offset >= start}
        self.settled = {offset for offset in self.settled if offset >= start}

    @invariant()
    def matches_the_model(self):
        open_letters = {offset: letter for offset, letter in self.letters.items() if offset not in self.settled}
        assert self.index.depth == len(open_letters)
        assert self.index.oldest_offset == (min(open_letters) if open_letters else None)
        assert self.index.oldest == (open_letters[min(open_letters)][1] if open_letters else None)
        counts = {group.fingerprint: group.letters for group in self.index.groups()}
        assert counts == {
            name: n for name in "abcd" if (n := sum(letter[0] == name for letter in open_letters.values()))
        }


TestLetterIndexModel = LetterIndexModel.TestCase
TestLetterIndexModel.settings = settings(max_examples=60, stateful_step_count=30)


def test_groups_have_type_category_and_times():
    index = LetterIndex()
    for offset, when in enumerate((500, 100, 900)):
        index.add(offset, "ab", "Timeout", "Network", when)
    index.add(3, "cd", "Http500", "Transient", 7)
    assert index.groups() == (
        FailureGroup("ab", "Timeout", "Network", 3, 100, 900),
        FailureGroup("cd", "Http500", "Transient", 1, 7, 7),
    )
    assert (2 in index, 9 in index, "2" in index) == (True, False, False)


def test_more_groups_than_slots_are_counted_as_other():
    index = LetterIndex(max_groups=2)
    for offset, name in enumerate("aabcd"):
        index.add(offset, name, name, "Transient", offset)
    counts = [(group.fingerprint, group.letters) for group in index.groups()]
    assert counts == [("a", 2), ("b", 1), (OTHER_GROUP, 2)]


def test_an_empty_group_frees_its_slot():
    index = LetterIndex(max_groups=2)
    index.add(0, "a", "A", "Transient", 0)
    index.add(1, "b", "B", "Transient", 0)
    index.settle([0])
    index.add(2, "c", "C", "Transient", 0)
    assert {group.fingerprint for group in index.groups()} == {"b", "c"}


def test_only_the_newest_letters_are_grouped_and_all_are_counted():
    index = LetterIndex(max_grouped=3)
    for offset in (1, 2, 65_537, 65_538, 131_073):
        index.add(offset, "a", "A", "Transient", 1_000 + offset)
    assert index.depth == 5
    assert [group.letters for group in index.groups()] == [3]
    assert (index.oldest_offset, index.oldest) == (1, 1_001)
    index.settle([1, 2])
    assert index.oldest == 1_000 + 65_537


def test_a_letter_that_is_seen_twice_counts_once():
    index = LetterIndex()
    index.add(5, "a", "A", "Transient", 1)
    index.add(5, "b", "B", "Network", 2)
    assert (index.depth, [group.fingerprint for group in index.groups()]) == (1, ["a"])


def test_times_far_apart_and_out_of_order_are_kept_exactly():
    index = LetterIndex()
    for offset, when in ((3, 1_000), (1, 2**45), (2, 5)):
        index.add(offset, "a", "A", "Transient", when)
    seen = []
    for offset in (1, 2, 3):
        seen.append(index.oldest)
        index.settle([offset])
    assert seen == [2**45, 5, 1_000]


def test_drop_below_forgets_the_lowest_letters():
    index = LetterIndex()
    for offset in (1, 2, 65_540, 65_541):
        index.add(offset, "a", "A", "Transient", offset)
    index.drop_below(2)
    assert (index.depth, index.oldest) == (3, 2)
    index.drop_below(65_541)
    assert (index.depth, index.oldest) == (1, 65_541)


def test_letters_settled_before_they_are_seen_are_never_open():
    index = LetterIndex()
    index.settle([5])
    index.add(5, "a", "A", "Transient", 1)
    assert (index.depth, index.oldest, index.groups()) == (0, None, ())


@given(st.lists(st.integers(0, 2**60), unique=True, max_size=20))
def test_offsets_may_be_as_large_as_in_kafka(offsets):
    index = LetterIndex()
    for offset in offsets:
        index.add(offset, "a", "A", "Transient", offset % 1_000)
    assert index.depth == len(offsets)
    assert index.oldest_offset == (min(offsets) if offsets else None)
