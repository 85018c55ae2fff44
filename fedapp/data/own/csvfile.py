"""A CSV file that a person wrote, line by line, with what is wrong in it."""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fedapp.data.folder import composed
from fedapp.data.own.faults import Fault, Kind
from fedapp.ground.names import of_cell

Columns = Callable[[str, Sequence[str]], Sequence[str] | Fault]
"""Where the first line stands and its fields -> the columns' names, or what is wrong with them."""


def rows(
    table: Path, columns: Columns, faults: list[Fault], first_line: str
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield where each whole line of a CSV file stands, and its fields by column.

    columns: gives the names of the columns that the first line names, or the fault in it.
    first_line: what the file should begin with. faults: takes what is wrong.
    """
    text = _text(table, faults)
    if text is None:
        return
    reader = csv.reader(text.splitlines(), strict=True)
    header: Sequence[str] = ()
    while True:
        where = f"{table.name}, line {reader.line_num + 1}"
        try:
            fields = [composed(of_cell(field.strip())) for field in next(reader)]
        except StopIteration:
            break
        except csv.Error as error:
            remedy = "put fields with commas or quotes in double quotes"
            faults.append(Fault(Kind.LAYOUT, where, f"not CSV ({error})", remedy))
            return
        if not any(fields):
            continue
        if not header:
            named = _separated(where, fields) or columns(where, fields)
            if isinstance(named, Fault):
                faults.append(named)
                return
            header = named
        elif len(fields) != len(header):
            what = f"{len(fields)} fields, the header has {len(header)}"
            remedy = "write one for each column; put a field that holds a comma in double quotes"
            faults.append(Fault(Kind.LAYOUT, where, what, remedy))
        else:
            yield where, dict(zip(header, fields, strict=True))
    if not header:
        remedy = f"begin it with the line {first_line}"
        faults.append(Fault(Kind.LAYOUT, table.name, "empty", remedy))


def _separated(where: str, fields: Sequence[str]) -> Fault | None:
    """Return the fault of a first line whose fields have something else than commas between."""
    found = re.search(r"[;\t|]", fields[0]) if len(fields) == 1 else None
    if found is None:
        return None
    what = f"fields are separated by {found[0]!r}"
    return Fault(Kind.LAYOUT, where, what, "save the file with commas between them")


def _text(table: Path, faults: list[Fault]) -> str | None:
    """Return a CSV file's text, without a byte order mark."""
    try:
        text = table.read_bytes().decode("utf-8-sig")
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
        remedy = "let the user who runs the node read it"
        faults.append(Fault(Kind.LAYOUT, table.name, what, remedy))
        return None
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        what, remedy = "not UTF-8 text", "save it as 'CSV UTF-8 (comma delimited)'"
        faults.append(Fault(Kind.LAYOUT, table.name, what, remedy))
        return None
    return text
