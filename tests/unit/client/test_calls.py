"""What a client tells of its calls."""

from __future__ import annotations

from scaler.client.calls import MAX_TAGS, ClientCalls, count_of
from scaler.protocol.messages import CallReport


def test_a_call_is_told_when_it_has_changed_and_once_after_its_end() -> None:
    calls = ClientCalls(1)
    call = calls.begin("map", "work", 10, has_chunks=True)
    assert calls.changed() == [CallReport(1, "map", "work", 10, True)]
    assert calls.changed() == []
    call.sent = 12  # the iterable grew
    call.count(4, 1)
    assert calls.changed() == [CallReport(1, "map", "work", 12, True, 12, 4, 1)]
    calls.tell_again()
    assert calls.changed() == [CallReport(1, "map", "work", 12, True, 12, 4, 1)]
    call.is_over = True
    assert calls.changed() == [CallReport(1, "map", "work", 12, True, 12, 4, 1, True)]
    calls.tell_again()
    assert calls.changed() == []


def test_the_items_of_a_map_are_those_of_its_shortest_iterable_as_far_as_that_is_known() -> None:
    class Broken(list[int]):
        def __len__(self) -> int:
            raise ValueError

    assert [count_of(each) for each in (([1, 2], range(5)), [(x for x in "ab")], [], [Broken()])] == [2, 0, 0, 0]


def names(calls: ClientCalls) -> list[tuple[int, str]]:
    return [(report.number, report.name) for report in calls.changed()]


def test_a_tag_has_one_number_and_is_told_whenever_it_is_used() -> None:
    calls = ClientCalls(first=7)
    assert (calls.of_tag("night"), calls.of_tag("night"), calls.of_tag("day")) == (7, 7, 8)
    assert names(calls) == [(7, "night"), (8, "day")]
    assert names(calls) == []
    calls.of_tag("night")
    assert names(calls) == [(7, "night")]
    calls.tell_again()
    assert names(calls) == [(8, "day"), (7, "night")]


def test_the_tags_used_last_are_known() -> None:
    calls = ClientCalls(first=1)
    first = calls.of_tag("first")
    for number in range(MAX_TAGS - 1):
        calls.of_tag(str(number))
    assert calls.of_tag("first") == first
    calls.of_tag("one more")
    assert calls.number_of_tag("0") is None
    assert calls.number_of_tag("first") == first
    assert calls.of_tag("0") == MAX_TAGS + 2
