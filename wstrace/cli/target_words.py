"""The words of a command line that end in a command of the user's, for the commands that take one."""

from __future__ import annotations

import click


class TargetWords(click.Command):
    """A click command whose own options end at the target: `--`, COMMAND, FILE, -m MODULE or -c CODE."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Inserts `--` where the target begins, so that click does not parse the target's own options."""
        ctx.meta["wstrace.literal"] = False
        self._takes_value = {
            name for p in self.params if isinstance(p, click.Option) and not p.is_flag for name in p.opts
        }
        at = 0
        while at < len(args):
            word = args[at]
            if word == "--":
                ctx.meta["wstrace.literal"] = True
                break
            if (word in ("-m", "-c") or not word.startswith("-") or word == "-") and self.begins_target(word):
                args = [*args[:at], "--", *args[at:]]
                break
            at += 1 + self._value_follows(word)
        return super().parse_args(ctx, args)

    def begins_target(self, word: str) -> bool:
        """Whether a word that is no option of this command begins the target."""
        return True

    def _value_follows(self, word: str) -> bool:
        """Whether the next word is the value of this option, or of the last of short ones together (`-fo FILE`)."""
        if word.startswith("--"):
            return word in self._takes_value
        first = next((at for at, letter in enumerate(word) if f"-{letter}" in self._takes_value), len(word))
        return first == len(word) - 1
