"""How figures are written: shares, dollars, counts."""


def percent(share: float) -> str:
    """A share in percent with one digit: 0.4088 is 40.9; only 1 is 100.0."""
    text = f"{100 * share:.1f}"
    return "99.9" if text == "100.0" and share < 1 else text


def money(amount: float) -> str:
    """Return a cost as text: two decimals from 100 on, else four significant digits."""
    return f"{amount:,.2f}" if amount >= 100 else f"{amount:.4g}"


def count_of(number: int, noun: str) -> str:
    """``1 trace``, ``2 traces``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
