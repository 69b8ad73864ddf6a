"""The register answers as a naive model would, whatever happened."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from deadletter.core.box_stats import FailureGroup
from deadletter.core.letter_index import OTHER_GROUP, LetterIndex
from deadletter.core.times import clamp

SMALL = st.integers(0, 200_000)


class RegisterModel(RuleBasedStateMachine):
    """Adding, settling and dropping at random, beside plain dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.register = LetterIndex()
        self.letters: dict[int, tuple[str, int]] = {}
        self.settled: set[int] = set()

    @rule(offset=SMALL, group=st.sampled_from("abcd"), when=st.integers(-(2**63), 2**64))
    def add(self, offset, group, when):
        self.register.add(offset, group, f"T{group}", "Transient", when)
        self.letters.setdefault(offset, (group, clamp(when)))

    @rule(offsets=st.lists(SMALL, max_size=5))
    def settle(self, offsets):
        self.register.settle(offsets)
        self.settled.update(offsets)

    @precondition(lambda self: self.letters)
    @rule(choice=st.data())
    def settle_a_letter(self, choice):
        self.settle([choice.draw(st.sampled_from(sorted(self.letters)))])

    @rule(start=SMALL)
    def drop_below(self, start):
        self.register.drop_below(start)
        self.letters = {offset: told for offset, told in self.letters.items() if offset >= start}
        self.settled = {offset for offset in self.settled if offset >= start}

    @invariant()
    def answers_agree(self):
        held = {offset: told for offset, told in self.letters.items() if offset not in self.settled}
        assert self.register.depth == len(held)
        assert self.register.oldest_offset == (min(held) if held else None)
        assert self.register.oldest == (held[min(held)][1] if held else None)
        counts = {group.fingerprint: group.letters for group in self.register.groups()}
        assert counts == {name: n for name in "abcd" if (n := sum(told[0] == name for told in held.values()))}


TestRegisterModel = RegisterModel.TestCase
TestRegisterModel.settings = settings(max_examples=60, stateful_step_count=30)


def test_groups_tell_type_category_and_times():
    register = LetterIndex()
    for offset, when in enumerate((500, 100, 900)):
        register.add(offset, "ab", "Timeout", "Network", when)
    register.add(3, "cd", "Http500", "Transient", 7)
    assert register.groups() == (
        FailureGroup("ab", "Timeout", "Network", 3, 100, 900),
        FailureGroup("cd", "Http500", "Transient", 1, 7, 7),
    )
    assert (2 in register, 9 in register, "2" in register) == (True, False, False)


def test_more_groups_than_slots_are_counted_as_other():
    register = LetterIndex(max_groups=2)
    for offset, name in enumerate("aabcd"):
        register.add(offset, name, name, "Transient", offset)
    counts = [(group.fingerprint, group.letters) for group in register.groups()]
    assert counts == [("a", 2), ("b", 1), (OTHER_GROUP, 2)]


def test_an_empty_group_frees_its_slot():
    register = LetterIndex(max_groups=2)
    register.add(0, "a", "A", "Transient", 0)
    register.add(1, "b", "B", "Transient", 0)
    register.settle([0])
    register.add(2, "c", "C", "Transient", 0)
    assert {group.fingerprint for group in register.groups()} == {"b", "c"}


def test_only_the_newest_letters_are_grouped_and_all_are_counted():
    register = LetterIndex(max_grouped=3)
    for offset in (1, 2, 65_537, 65_538, 131_073):
        register.add(offset, "a", "A", "Transient", 1_000 + offset)
    assert register.depth == 5
    assert [group.letters for group in register.groups()] == [3]
    assert (register.oldest_offset, register.oldest) == (1, 1_001)
    register.settle([1, 2])
    assert register.oldest == 1_000 + 65_537


def test_a_letter_that_is_seen_twice_counts_once():
    register = LetterIndex()
    register.add(5, "a", "A", "Transient", 1)
    register.add(5, "b", "B", "Network", 2)
    assert (register.depth, [group.fingerprint for group in register.groups()]) == (1, ["a"])


def test_times_far_apart_and_out_of_order_are_kept_exactly():
    register = LetterIndex()
    for offset, when in ((3, 1_000), (1, 2**45), (2, 5)):
        register.add(offset, "a", "A", "Transient", when)
    seen = []
    for offset in (1, 2, 3):
        seen.append(register.oldest)
        register.settle([offset])
    assert seen == [2**45, 5, 1_000]


def test_retention_takes_letters_from_the_bottom():
    register = LetterIndex()
    for offset in (1, 2, 65_540, 65_541):
        register.add(offset, "a", "A", "Transient", offset)
    register.drop_below(2)
    assert (register.depth, register.oldest) == (3, 2)
    register.drop_below(65_541)
    assert (register.depth, register.oldest) == (1, 65_541)


def test_letters_settled_before_they_are_seen_are_never_open():
    register = LetterIndex()
    register.settle([5])
    register.add(5, "a", "A", "Transient", 1)
    assert (register.depth, register.oldest, register.groups()) == (0, None, ())


@given(st.lists(st.integers(0, 2**60), unique=True, max_size=20))
def test_offsets_may_be_as_large_as_kafka_has_them(offsets):
    register = LetterIndex()
    for offset in offsets:
        register.add(offset, "a", "A", "Transient", offset % 1_000)
    assert register.depth == len(offsets)
    assert register.oldest_offset == (min(offsets) if offsets else None)
