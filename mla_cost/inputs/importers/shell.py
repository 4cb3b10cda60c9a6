"""Shell scripts, read and never run: words by shlex, variables of the same file expanded, includes not followed.

What a command would print, what the environment holds and what an `if` asks beyond comparing two texts is not known;
words that need it have the text UNKNOWN in them, and the lines are reported.
"""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator
from typing import Final, NamedTuple

from mla_cost.errors import InputError

UNKNOWN: Final = "\N{REPLACEMENT CHARACTER}"
_MOST_TEXT: Final = 200_000  # characters that a word may grow to: variables that hold each other double at each step
_MOST_WORDS: Final = 50_000
_MOST_SCRIPT: Final = 2**18  # characters; public scripts have a fifth of it at most
_MOST_SUMS: Final = 1000
_MOST_IN_ALL: Final = 2**20  # characters that variables may grow to, all of them together
_MOST_ROUNDS: Final = 32
_ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_VARIABLE: Final = re.compile(
    r"\$(?:(?P<plain>[A-Za-z_]\w*|[0-9@*?#$!])"
    r"|\{(?P<name>[A-Za-z_]\w*|[0-9@*])(?:\[[@*]\])?(?:(?P<how>:?[-=+?])(?P<other>[^{}]*))?\}"
    r"|\{[^{}]*\}|\[(?P<number>\d+)\])"
)
_HERE: Final = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_ARITHMETIC: Final = re.compile(r"[\d+\-*/%()\s]+")
_PREFIXES: Final = frozenset({"export", "declare", "local", "readonly", "typeset", "-x", "-r", "-a", "-gx"})
_BREAKS: Final = frozenset("\n;&|()<>")
_BREAK: Final = "\n"
_INCLUDES: Final = frozenset({"source", "."})


class Script(NamedTuple):
    """What a script states: its commands as words, its variables, and the lines that were not followed.

    skipped: (line, why) of branches, includes and substitutions. sbatch: options of `#SBATCH` lines, as words.
    """

    commands: tuple[tuple[str, ...], ...]
    variables: dict[str, str]
    skipped: tuple[tuple[int, str], ...]
    sbatch: tuple[str, ...]


def read(text: str, file: str) -> Script:
    """The commands of a shell script with their variables put in.

    Raises:
        InputError: a quote that is never closed, or variables that grow beyond what any script has.

    """
    if len(text) > _MOST_SCRIPT:
        raise InputError(f"a script of {len(text):,} characters", file=file, allowed=f"at most {_MOST_SCRIPT:,}")
    return _Reader(text, file).script()


class _ShellLines(io.StringIO):
    """Text whose `readline` leaves the line break: shlex drops a comment with it, and the command would go on."""

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]  # typeshed: bytes above, text here
        line = super().readline(-1 if size is None else size)
        if line.endswith("\n"):
            self.seek(self.tell() - 1)
        return line


class _Reader:
    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.sums: list[str] = []
        self.grown = 0
        self.skipped: list[tuple[int, str]] = []
        self.variables: dict[str, str] = {}
        self.commands: list[tuple[str, ...]] = []
        self.branches: list[bool | None] = []  # of each open `if`: taken, not taken, done (None)
        self.sbatch = [word for line in re.findall(r"^#SBATCH\s+(.*)$", text, re.MULTILINE) for word in line.split()]
        self.text = self._without_substitutions(_joined(_without_here(text)))

    def script(self) -> Script:
        for line, words in self._statements():
            self._statement(line, words)
        return Script(tuple(self.commands), self.variables, tuple(dict.fromkeys(self.skipped)), tuple(self.sbatch))

    def _without_substitutions(self, text: str) -> str:
        """`$((SUM))` as `$[N]`, one word without brackets, and `$(COMMAND)` and backticks as UNKNOWN."""
        text = re.sub(r"`[^`\n]*`", UNKNOWN, text)
        done, place = [], 0
        while (start := text.find("$(", place)) >= 0:
            end = _closing(text, start + 1)
            inside = text[start + 2 : end - 1]
            done.append(text[place:start])
            if inside.startswith("(") and inside.endswith(")"):
                self.sums.append(inside[1:-1])
                if len(self.sums) > _MOST_SUMS:
                    raise InputError("more sums than a launch script has", file=self.file, allowed=f"{_MOST_SUMS:,}")
                done.append(f"$[{len(self.sums) - 1}]")
            else:
                done.append(UNKNOWN)
            place = end
        return "".join([*done, text[place:]])

    def _tokens(self) -> Iterator[tuple[int, str]]:
        lines = _ShellLines(self.text)
        lexer = shlex.shlex(lines, posix=True, punctuation_chars="".join(_BREAKS))
        lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, "#"
        line, place = 1, 0
        while True:
            line, place = line + self.text.count("\n", place, lines.tell()), lines.tell()
            try:
                token = lexer.get_token()
            except ValueError as error:
                message = "a quote is never closed" if "quotation" in str(error) else str(error)
                raise InputError(message, file=self.file, line=line) from None
            if token is None:
                return
            yield line, token

    def _statements(self) -> Iterator[tuple[int, list[str]]]:
        """The words of each command; an assigned list stands as its name, `=(` and its words, and `)`."""
        words: list[str] = []
        inside, begun, count = False, 0, 0
        for line, token in self._tokens():
            count += 1
            if count > _MOST_WORDS:
                raise InputError("more words than a launch script has", file=self.file, allowed=f"{_MOST_WORDS:,}")
            marks = set(token) <= _BREAKS and bool(token)
            if inside:
                inside = not (marks and ")" in token)
                words += [] if marks else [token]
                if not inside and token.rstrip(" ") != ")":  # the list ends with its line
                    yield begun, words
                    words = []
                continue
            if marks and token.startswith("(") and words and re.fullmatch(r"[A-Za-z_]\w*\+?=", words[-1]):
                inside = ")" not in token
            elif marks:
                if words:
                    yield begun, words
                words = []
            else:
                begun = begun if words else line
                words.append(token)
        if words:
            yield begun, words

    def _statement(self, line: int, words: list[str]) -> None:
        words = self._branch(line, words)
        if not words or False in self.branches or None in self.branches:
            return None
        while words and words[0] in _PREFIXES:
            words = words[1:]
        given = _ASSIGNED.fullmatch(words[0]) if words else None
        if given is not None:
            return self._assign(given, words[1:])
        if words and words[0] in _INCLUDES:
            return self.skipped.append((line, f"{words[0]} {' '.join(words[1:2])}: another file is not read"))
        found = [word for each in words for word in self._words(each)]
        if found:
            self.commands.append(tuple(found))
        return None

    def _assign(self, given: re.Match[str], more: list[str]) -> None:
        """`NAME=VALUE`, `NAME+=VALUE`, or a list, whose words are joined by spaces; what follows is a command."""
        name, adds, value = given.groups()
        if value or not more:
            rest = more
            found = self._expanded(value)
        else:
            rest, found = [], " ".join(self._expanded(word) for word in more)
        before = self.variables.get(name, "")
        self.variables[name] = f"{before} {found}" if adds and before else found
        if len(self.variables[name]) > _MOST_TEXT:
            raise InputError(f"the variable {name} grows beyond any launch script", file=self.file)
        if rest:
            self._statement(0, rest)

    def _branch(self, line: int, words: list[str]) -> list[str]:
        """The words after `if`, `then`, `else`, `fi`, loops and functions; keeps what branch stands open."""
        first = words[0]
        if first in {"if", "elif"}:
            if first == "elif":
                self.branches[-1:] = [None if self.branches and self.branches[-1] is not False else False]
            if first == "if" or (self.branches and self.branches[-1] is False):
                answer = self._asked(words[1:])
                if answer is None:
                    self.skipped.append((line, "if: what it asks is not known here; its lines are left out"))
                taken = bool(answer)
                self.branches = [*self.branches, taken] if first == "if" else [*self.branches[:-1], taken]
            return []
        if first == "fi":
            self.branches = self.branches[:-1]
            return []
        if first == "else":
            self.branches[-1:] = [True if self.branches and self.branches[-1] is False else None]
            return self._branch(line, words[1:]) if words[1:] else []
        if first in {"then", "do", "{"}:
            return self._branch(line, words[1:]) if words[1:] else []
        return [] if first in {"for", "while", "until", "done", "case", "esac", "}", "function"} else words

    def _asked(self, words: list[str]) -> bool | None:
        """Whether a comparison of two texts or numbers holds; None where that is not known."""
        inside = [self._expanded(word) for word in words if word not in {"[", "[[", "]", "]]", "test"}]
        if any(UNKNOWN in word for word in inside):
            return None
        match inside:
            case [one, "=" | "==" | "-eq", other]:
                return one == other
            case [one, "!=" | "-ne", other]:
                return one != other
            case ["-z", text]:
                return not text
            case ["-n", text] | [text]:
                return bool(text) if words[0] in {"[", "[[", "test"} else None
        return None

    def _words(self, token: str) -> list[str]:
        """The words that a token becomes; a quoted command line (bash -c "...") is split as well."""
        found = self._expanded(token)
        if found == token and (" --" not in token and "\n" not in token):
            return [token]
        if not set("'\"\\#") & set(found):
            return found.split()
        try:
            return shlex.split(found, comments=True)
        except ValueError:
            return found.split()

    def _expanded(self, token: str) -> str:
        for _ in range(_MOST_ROUNDS):
            if "$" not in token:
                break
            token = _VARIABLE.sub(self._value, token)
            self.grown += len(token)
            if len(token) > _MOST_TEXT or self.grown > _MOST_IN_ALL:
                raise InputError("variables grow beyond any launch script", file=self.file)
        return token

    def _value(self, match: re.Match[str]) -> str:
        if match["number"] is not None:
            number = int(match["number"])
            return self._sum(self.sums[number]) if number < len(self.sums) else UNKNOWN
        name, how = match["plain"] or match["name"], match["how"] or ""
        if name is None:
            return UNKNOWN
        found = self.variables.get(name, "")
        if how.endswith("+"):
            return (match["other"] or "") if found else ""
        if found or (name in self.variables and not how.startswith(":")):
            return found
        return (match["other"] or "") if how[-1:] in {"-", "="} else UNKNOWN

    def _sum(self, expression: str) -> str:
        """What shell arithmetic of whole numbers gives; names stand with or without `$`."""
        reported = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda name: self.variables.get(name[1], UNKNOWN), expression)
        if not _ARITHMETIC.fullmatch(reported) or len(reported) > 200 or "**" in reported:
            return UNKNOWN
        return _Sum(reported.replace(" ", "")).value()


class _Sum:
    """Whole numbers with + - * / % and brackets, as a shell works them out."""

    def __init__(self, text: str) -> None:
        self.left = re.findall(r"\d+|[-+*/%()]", text)

    def value(self) -> str:
        try:
            found = self._terms()
        except (IndexError, ValueError, ZeroDivisionError, RecursionError):
            return UNKNOWN
        return str(found) if not self.left else UNKNOWN

    def _terms(self) -> int:
        found = self._factors()
        while self.left and self.left[0] in "+-":
            found += self._factors() if self.left.pop(0) == "+" else -self._factors()
        return found

    def _factors(self) -> int:
        found = self._one()
        while self.left and self.left[0] in "*/%":
            sign, other = self.left.pop(0), self._one()
            found = found * other if sign == "*" else found // other if sign == "/" else found % other
        return found

    def _one(self) -> int:
        word = self.left.pop(0)
        if word == "-":
            return -self._one()
        if word != "(":
            return int(word[:30])
        found = self._terms()
        if self.left.pop(0) != ")":
            raise ValueError(word)
        return found


def _without_here(text: str) -> str:
    """A script without the frames of here-documents: what stands in one is read as lines of the script."""
    ends: list[str] = []
    done = []
    for line in text.split("\n"):
        if ends and line.strip() == ends[0]:
            ends.pop(0)
            done.append("")
            continue
        if not line.lstrip().startswith("#"):
            ends += [match[2] for match in _HERE.finditer(line)]
            line = _HERE.sub("", line)  # noqa: PLW2901  (the rest of the loop is about the line without it)
        done.append(line)
    return "\n".join(done)


def _joined(text: str) -> str:
    """Lines that end in a backslash with the next one; a comment's backslash joins nothing."""
    kept: list[str] = []
    joined = 0  # breaks that follow the whole, so that lines keep their numbers
    for line in text.split("\n"):
        comment = line.lstrip().startswith("#")
        stripped = line.rstrip()
        joins = stripped.endswith("\\") and not stripped.endswith("\\\\") and not comment
        kept.append(f"{stripped[:-1]} " if joins else f"{line}\n{joined * _BREAK}")
        joined = joined + 1 if joins else 0
    return "".join(kept)


def _closing(text: str, start: int) -> int:
    """The place after the bracket that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place + 1
    return len(text)
