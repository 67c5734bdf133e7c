"""Rust's v0 mangling: used by Rust's own standard library (1.95), and by any code on request.

Source: RFC 2603, "Rust Symbol Mangling (v0)"; https://doc.rust-lang.org/rustc/symbol-mangling/v0.html. The output is
binutils': without the crates' hashes and without the types of constants.
"""

from __future__ import annotations

from collections.abc import Callable

_BASIC = {
    "a": "i8", "b": "bool", "c": "char", "d": "f64", "e": "str", "f": "f32", "h": "u8", "i": "isize", "j": "usize",
    "l": "i32", "m": "u32", "n": "i128", "o": "u128", "p": "_", "s": "i16", "t": "u16", "u": "()", "v": "...",
    "x": "i64", "y": "u64", "z": "!",
}  # fmt: skip
_BASE_62 = {c: i for i, c in enumerate("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")}


class MangledError(ValueError):
    """This is no v0 name, a name of a later version, or one whose expansion would not end."""


def rust_v0(name: str) -> str:
    """The path that a name `_R...` encodes. Raises MangledError."""
    mangled, _, _ = name.partition(".")  # .cold, .llvm.123: suffixes that LLVM adds
    return _Printer(mangled.removeprefix("_R")).path(in_value=True)


class _Printer:
    """Reads a name from left to right; each method returns the text of the part that it has read."""

    #: a name may repeat its own parts without end (backref), so the work per name is bounded
    MAX_STEPS, MAX_DEPTH, MAX_LENGTH = 5_000, 200, 16_384

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.steps = self.depth = self.lifetimes = 0

    # -- letters and numbers ---------------------------------------------------------------------------------------

    def next(self) -> str:
        if self.at >= len(self.text):
            raise MangledError("ends early")
        self.at += 1
        return self.text[self.at - 1]

    def eat(self, letter: str) -> bool:
        if self.text[self.at : self.at + 1] != letter:
            return False
        self.at += 1
        return True

    def base_62(self) -> int:
        value, digits = 0, 0
        while not self.eat("_"):
            digit = _BASE_62.get(self.next())
            if digit is None or digits > 10:
                raise MangledError("no base-62 number")
            value, digits = value * 62 + digit, digits + 1
        return value + 1 if digits else 0

    def optional(self, letter: str) -> int:
        return self.base_62() + 1 if self.eat(letter) else 0

    def identifier(self) -> str:
        punycode, start = self.eat("u"), self.at
        while self.text[self.at : self.at + 1].isdecimal() and self.text[start : self.at] != "0":
            self.at += 1
        length = int(self.text[start : self.at])
        self.eat("_")
        word = self.text[self.at : self.at + length]
        if len(word) != length:
            raise MangledError("ends early")
        self.at += length
        if punycode:
            head, _, tail = word.rpartition("_")
            word = f"{head}-{tail}".lstrip("-").encode().decode("punycode")
        return word

    # -- what may nest ---------------------------------------------------------------------------------------------

    def within(self, read: Callable[[], str]) -> str:
        self.steps, self.depth = self.steps + 1, self.depth + 1
        if self.steps > self.MAX_STEPS or self.depth > self.MAX_DEPTH:
            raise MangledError("too long or too deep")
        text = read()
        if len(text) > self.MAX_LENGTH:
            raise MangledError("too long")
        self.depth -= 1
        return text

    def back(self, read: Callable[[], str]) -> str:
        start = self.at - 1
        target = self.base_62()
        if target >= start:
            raise MangledError("a reference forward")
        behind, self.at = self.at, target
        text = self.within(read)
        self.at = behind
        return text

    def many(self, read: Callable[[], str]) -> list[str]:
        parts = []
        while not self.eat("E"):
            parts.append(read())
        return parts

    def path(self, in_value: bool = False) -> str:
        return self.within(lambda: self._path(in_value))

    def _path(self, in_value: bool) -> str:
        match self.next():
            case "C":
                self.optional("s")
                return self.identifier()
            case "N":
                return self._nested(in_value)
            case "M":
                self._implementation()
                return f"<{self.type()}>"
            case "X":
                self._implementation()
                return f"<{self.type()} as {self.path()}>"
            case "Y":
                return f"<{self.type()} as {self.path()}>"
            case "I":
                path = self.path(in_value)
                return f"{path}{'::' if in_value else ''}<{', '.join(self.many(self.argument))}>"
            case "B":
                return self.back(lambda: self.path(in_value))
        raise MangledError("no path")

    def _implementation(self) -> None:
        self.optional("s")
        self.path()

    def _nested(self, in_value: bool) -> str:
        space = self.next()
        path = self.path(in_value)
        number = self.optional("s")
        name = self.identifier()
        if space.islower():
            return f"{path}::{name}" if name else path
        kind = {"C": "closure", "S": "shim"}.get(space, space)
        return f"{path}::{{{kind}{':' if name else ''}{name}#{number}}}"

    def argument(self) -> str:
        if self.eat("L"):
            return self.lifetime(self.base_62())
        return self.constant() if self.eat("K") else self.type()

    def lifetime(self, index: int) -> str:
        if not index:
            return "'_"
        number = self.lifetimes - index
        if number < 0:
            raise MangledError("a lifetime of nowhere")
        return f"'{chr(ord('a') + number)}" if number < 26 else f"'_{number}"

    def type(self) -> str:
        return self.within(self._type)

    def _type(self) -> str:
        tag = self.next()
        if tag in _BASIC:
            return _BASIC[tag]
        match tag:
            case "R" | "Q":
                index = self.base_62() if self.eat("L") else 0
                lifetime = f"{self.lifetime(index)} " if index else ""
                return f"&{lifetime}{'mut ' if tag == 'Q' else ''}{self.type()}"
            case "P":
                return f"*const {self.type()}"
            case "O":
                return f"*mut {self.type()}"
            case "A":
                return f"[{self.type()}; {self.constant()}]"
            case "S":
                return f"[{self.type()}]"
            case "T":
                parts = self.many(self.type)
                return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
            case "F":
                return self.binder(self._function)
            case "D":
                text = "dyn " + self.binder(lambda: " + ".join(self.many(self._trait)))
                index = self.optional("L") - 1
                return f"{text} + {self.lifetime(index)}" if index > 0 else text
            case "B":
                return self.back(self.type)
        self.at -= 1
        return self.path()

    def binder(self, read: Callable[[], str]) -> str:
        bound = self.optional("G")
        if bound > 64:
            raise MangledError("too many lifetimes")
        self.lifetimes += bound
        names = ", ".join(self.lifetime(bound - i) for i in range(bound))
        text = (f"for<{names}> " if bound else "") + read()
        self.lifetimes -= bound
        return text

    def _function(self) -> str:
        text = "unsafe " if self.eat("U") else ""
        if self.eat("K"):
            abi = "C" if self.eat("C") else self.identifier().replace("_", "-")
            text += f'extern "{abi}" '
        text += f"fn({', '.join(self.many(self.type))})"
        return text if self.eat("u") else f"{text} -> {self.type()}"

    def _trait(self) -> str:
        text = self.path()
        bindings = []
        while self.eat("p"):
            bindings.append(f"{self.identifier()} = {self.type()}")
        if not bindings:
            return text
        return f"{text[:-1]}, {', '.join(bindings)}>" if text.endswith(">") else f"{text}<{', '.join(bindings)}>"

    def constant(self) -> str:
        return self.within(self._constant)

    def _constant(self) -> str:
        tag = self.next()
        if tag == "B":
            return self.back(self.constant)
        if tag == "p":
            return "_"
        if tag not in "abchijlmnostxy":
            raise MangledError("a constant of a later version")
        sign = "-" if self.eat("n") else ""
        start = self.at
        while self.next() != "_":
            pass
        digits = self.text[start : self.at - 1]
        value = int(digits or "0", 16)
        if tag == "b":
            return "true" if value else "false"
        if tag == "c":
            return repr(chr(value))
        return f"{sign}{value}" if len(digits) <= 16 else f"{sign}0x{digits}"
