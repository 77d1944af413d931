"""The command ``mlff-triton models``: the models that have names."""

from __future__ import annotations

from mlff_triton.cli._shared import plain_console


def models() -> None:
    """List the models that have names, where they are, and what is known about them."""
    from mlff_triton.checkpoints import ALIASES, hub, shipped_models
    from mlff_triton.checkpoints.facts import FACTS

    aliases = {name: alias for alias, name in ALIASES.items()}
    rows = [(name, "shipped", aliases.get(name, "")) for name in shipped_models()]
    for name, model in hub.NAMED.items():
        if not hub.is_installed():
            place = "needs the extra hub"
        else:
            place = "in the cache" if hub.is_cached(model) else "on the Hub"
        rows.append((name, place, model.repo))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    console = plain_console()
    for name, place, source in rows:
        console.print(f"{name:{widths[0]}}  {place:{widths[1]}}  {source}".rstrip())
        for fact, text in FACTS[name].rows():
            console.print(f"    {fact:12}  {text}")
