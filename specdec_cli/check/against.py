"""An engine's answers, step by step, for `explain` to show beside the exact ones."""

from __future__ import annotations

from collections.abc import Iterator

from specdec_cli.batch import PAD, Batch
from specdec_cli.check.answer import make_answer
from specdec_cli.check.judge import judge
from specdec_cli.decide import Verification
from specdec_cli.errors import InputError
from specdec_cli.explain.data import Engine
from specdec_cli.near_ties import FLOAT32
from specdec_cli.readers import STDIN, Document, documents
from specdec_cli.structure import ANSWER_AXES


class Against:
    """The answers in a result.

    Args:
      result: its name; None for no answers at all.
    """

    def __init__(self, result: str | None) -> None:
        if result == STDIN:
            raise InputError("--against takes a file", "standard input is the input's")
        self._result = result
        self._documents: Iterator[Document] = iter(()) if result is None else documents(result, ANSWER_AXES)

    def skip(self) -> None:
        """Pass over the answer for a step that could not be verified."""
        next(self._documents, None)

    def end(self) -> None:
        """Be done with it.

        Raises:
          InputError: there are answers left.
        """
        if next(self._documents, None) is not None:
            raise InputError("has more steps than the input", source=self._result)

    def next(self, batch: Batch, verification: Verification) -> list[Engine] | None:
        """The engine's answer for the next step, row by row, judged as a float32 engine's.

        Raises:
          InputError: there is none, or it cannot be read.
        """
        if self._result is None:
            return None
        document = next(self._documents, None)
        if document is None:
            raise InputError("has fewer steps than the input", source=self._result)
        try:
            if document.fields is None:
                raise document.error or InputError("could not be read")
            answer = make_answer(document.fields, batch)
        except InputError as error:
            raise error.named(self._result, document.line if document.in_lines() else None) from None
        return [
            Engine(
                num_accepted=int(answer.num_accepted[each.row]),
                tokens=[int(token) for token in answer.tokens[each.row] if token != PAD],
                verdict=each.verdict.value,
                cause=each.cause,
            )
            for each in judge(batch, verification, answer, FLOAT32)
        ]
