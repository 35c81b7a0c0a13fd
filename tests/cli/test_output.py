"""Control characters in untrusted text never reach the terminal."""

from io import StringIO

from rich.markup import escape
from rich.table import Table

from rolecall.cli.output import Terminal

HOSTILE = "\x1b]52;c;eA==\x07 \x1b[2J [red]"


def test_texts_send_no_control_characters_to_a_terminal() -> None:
    sent = StringIO()
    terminal = Terminal(file=sent, force_terminal=True, highlight=False, width=200)
    table = Table("A")
    table.add_row(escape(HOSTILE))
    terminal.print(f"[bold]{escape(HOSTILE)}[/]")
    terminal.print(table)
    text = sent.getvalue()
    assert text.count(r"\x1b]52;c;eA==\x07 \x1b[2J [red]") == 2
    assert "\x1b]" not in text
    assert "\x1b[2J" not in text
    assert "\x1b[1m" in text, "its own styles stay"
