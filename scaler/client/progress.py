"""The bar that `progress=True` shows: items that have ended, and how many of them failed.

It is tqdm's, in a terminal, a notebook or a file of stderr alike, and heeds tqdm's own variables, such as TQDM_DISABLE.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

from scaler.client.pieces import Piece, Pieces


class Progress:
    """A bar over the items of one call. A context in which it is shown; `close` is harmless when repeated."""

    def __init__(self, pieces: Pieces, name: str, total: int | None) -> None:
        """name: of the function. total: how many items there are, None when nobody knows."""
        from tqdm.auto import tqdm  # noqa: PLC0415 (it takes a while to import, and few need it)

        self._pieces = pieces
        self._failed = 0
        self._bar = tqdm(total=total, desc=name)

    def ended(self, pieces: Iterable[Piece]) -> None:
        """Count the items of pieces that have ended."""
        for piece in pieces:
            if failed := self._pieces.count_failed(piece):
                self._failed += failed
                self._bar.set_postfix(failed=self._failed, refresh=False)
            self._bar.update(piece.count)

    def close(self) -> None:
        """Leave the bar as it is, with what it has counted last."""
        if self._failed:  # the bar draws ten times a second at most, and the last words are on what failed
            self._bar.refresh()
        self._bar.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _exception: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()
