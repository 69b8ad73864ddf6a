"""Tests that letters share a fingerprint exactly if they failed for the same cause."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadletter.core.fingerprint import fingerprint, top_frame
from deadletter.core.letters import Failure

JAVA = (
    "x.E: no\n\tat com.acme.Bill.on(Bill.java:{})\n\tat com.acme.Main.main(Main.java:9)\nCaused by: y\n\tat z.Z.z(Z:1)"
)
PYTHON = (
    'Traceback (most recent call last):\n  File "/app/main.py", line {}, in run\n  File "/app/a.py", line {}, in f\nE'
)
DOTNET = "   at Acme.Bill.On(Order o) in /src/Bill.cs:line {}"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 17 not found", "order 18 not found"),
        ("order 0f8fad5b-d9cb-469f-a165-70867728950e", "order 7c9e6679-7425-40de-944b-e07fc1f90ae7"),
        ("at 0xdeadbeef", "at 0x7fffe1a0"),
        ("hash deadbeefcafe gone", "hash abcdefabcdef gone"),
        ("connect to 10.0.0.1:5432 refused", "connect to 192.168.7.9:6543 refused"),
        ("connect to [fe80::1]:80 refused", "connect to [2001:db8::7]:81 refused"),
        ("since 2026-11-16T10:00:00Z", "since 2025-01-01T00:00:00.5+01:00"),
        ("no field 'name' in \"x\"", "no field 'surname' in \"y\""),
        ("no `a`", "no `b`"),
        ("mail to ann@example.com", "mail to bob.b@mail.example.org"),
        ("GET https://a.example/x?y=1 failed", "GET http://b.example/z failed"),
        ("took 3.5s  over", "took 12s over"),
        ("a" * 512 + "x", "a" * 512 + "y"),
    ],
)
def test_variable_parts_do_not_matter(one, other):
    assert fingerprint(Failure("T", one)) == fingerprint(Failure("T", other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Failure("A", "m"), Failure("B", "m")),
        (Failure("A", "order not found"), Failure("A", "order not paid")),
        (Failure("A", "can't read it"), Failure("A", "can't write it")),
        (Failure("A", "m", stack="\tat a.A.x(A.java:1)"), Failure("A", "m", stack="\tat a.A.y(A.java:1)")),
    ],
)
def test_different_causes_differ(one, other):
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize("stack", [JAVA, PYTHON, DOTNET])
def test_line_numbers_do_not_matter(stack):
    one, other = (Failure("T", "m", stack=stack.format(line, line + 1)) for line in (7, 1_234))
    assert fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize(
    ("stack", "frame"),
    [
        (JAVA, "com.acme.Bill.on"),
        (PYTHON.format(1, 2), "/app/a.py f"),
        (DOTNET, "Acme.Bill.On"),
        ("    at run$7 (/srv/x.js:1:2)", "run$#"),
        ("", ""),
        ("no frames here", ""),
        ('he said File "x" once', ""),
    ],
)
def test_the_top_frame_is_where_it_was_raised(stack, frame):
    assert top_frame(stack) == frame


@given(st.text(), st.text(), st.text())
def test_any_text_gives_eight_hex_digits(error_type, message, stack):
    found = fingerprint(Failure(error_type, message, stack=stack))
    assert len(found) == 8
    assert int(found, 16) >= 0
