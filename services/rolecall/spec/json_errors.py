"""The errors of Python's JSON parser, in words for those who wrote the text. Pure."""

_EXPECTED = {
    "Expecting property name enclosed in double quotes": 'a name in double quotes is missing, such as "name"',
    "Expecting ':' delimiter": "a colon is missing after the name",
    "Expecting ',' delimiter": "a comma is missing, or a closing bracket",
    "Expecting value": 'a value is missing; text needs double quotes, as in "text"',
    "Extra data": "there is more text after the end of the value; remove it",
    "Unterminated string starting at": 'the text that begins here has no closing "',
    "Invalid control character at": "text in double quotes can't have line breaks and tabs; write \\n and \\t",
    "Invalid \\escape": "a backslash in text needs a second one: write \\\\",
    "Invalid \\uXXXX escape": "\\u needs four hexadecimal digits, such as \\u00e9; for a backslash, write \\\\",
}
_CLOSING = "}]"


def json_problem(message: str, text: str, position: int) -> str:
    """The mistake at `position` of a text and its remedy, for a message of the parser."""
    before, here = text[:position].rstrip()[-1:], text[position:].lstrip()[:1]
    if not text.strip():
        return "it is empty"
    if here and here in _CLOSING and before == ",":
        return f"there is a comma before the closing {here}; remove it"
    if here == "'":
        return "text and names need double quotes instead of single ones"
    if not here:
        return "it ends too early; add what is missing, such as a closing } or ]"
    if text.startswith(("//", "/*", "#"), position):
        return "JSON has no comments; remove it"
    return next((words for start, words in _EXPECTED.items() if message.startswith(start)), message)


def place(text: str, position: int) -> str:
    """The line and the column of a position, such as `line 2, column 5`."""
    return f"line {text.count(chr(10), 0, position) + 1}, column {position - text.rfind(chr(10), 0, position)}"
