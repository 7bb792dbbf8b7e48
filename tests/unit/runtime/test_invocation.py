"""The command line in reports."""

from fdgsec.runtime.invocation import command_line, invoked_with


def test_a_command_is_told_as_it_would_be_typed():
    with invoked_with(["attack", "--set", "a=b c"]):
        assert command_line() == "fdgsec attack --set 'a=b c'"


def test_calls_from_python_have_no_command():
    assert command_line() == ""
