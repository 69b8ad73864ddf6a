"""Tests of derived names and labels."""

from deadletter.core import names


def test_boxes_are_named_after_their_source():
    assert names.dead_box_name("orders", "billing") == "orders.billing.dlq"
    assert names.dead_box_name("orders", "billing", redis=True) == "{orders}.billing.dlq"
    dead = "orders.dlq"
    assert (names.retry_box_name(dead), names.ledger_name(dead), names.archive_name(dead)) == (
        "orders.dlq.retry",
        "orders.dlq.ledger",
        "orders.dlq.archive",
    )


def test_children_fit_into_63_characters_and_stay_apart():
    assert names.child_name("orders", "courier") == "orders-courier"
    assert names.child_name("orders.eu", "courier").startswith("orders-eu-courier-")
    long = [names.child_name("q" * 200 + end, "courier") for end in "ab"]
    assert [len(name) for name in long] == [63, 63]
    assert long[0] != long[1]


def test_labels_name_the_queue():
    labels = names.labels("q" * 200, "courier")
    assert labels["deadletter.dev/queue"] == labels["app.kubernetes.io/instance"]
    assert all(len(value) <= 63 for value in labels.values())
    assert labels["app.kubernetes.io/component"] == "courier"
