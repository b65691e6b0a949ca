"""Open incidents: what is the same trouble going on is told once.

Enters: the signs of one detector, record by record. Leaves: those that are news: a new incident,
an open one that has become worse, or an alarm that does not end. Never knows: how signs are found.
"""

from dataclasses import dataclass

from longhaul.diagnose.sign import Sign, Signs

_RANK = {"notice": 0, "warning": 1, "alarm": 2}


@dataclass(slots=True)
class _Incident:
    rank: int
    judgements: int = 0  # without a sign of it
    since_told: int = 0  # judgements with a sign of it


class Incidents:
    """The open incidents of one detector.

    Args:
        quiet: judgements in a row without a sign, after which an incident is closed.
        again: signs after which an alarm that goes on is told again: what was done about it did
            not help, and a run must not go on like that in silence; None: never.
    """

    def __init__(self, quiet: int, again: int | None = None) -> None:
        self._quiet = quiet
        self._again = again
        self._open: dict[tuple[str, str], _Incident] = {}

    def news(self, signs: Signs) -> tuple[Sign, ...]:
        """Signs that are news."""
        if signs is None or not (signs or self._open):
            return ()
        self._age({(sign.kind, sign.subject) for sign in signs})
        told = []
        for sign in signs:
            key, rank = (sign.kind, sign.subject), _RANK[sign.severity]
            incident = self._open.get(key)
            if incident is None:
                self._open[key] = _Incident(rank)
                told.append(sign)
                continue
            incident.since_told += 1
            due = self._again is not None and incident.since_told >= self._again
            goes_on = due and rank == _RANK["alarm"]
            if rank > incident.rank or goes_on:
                incident.rank, incident.since_told = max(rank, incident.rank), 0
                told.append(sign)
        return tuple(told)

    def _age(self, seen: set[tuple[str, str]]) -> None:
        for key, incident in list(self._open.items()):
            incident.judgements = 0 if key in seen else incident.judgements + 1
            if incident.judgements >= self._quiet:
                del self._open[key]
