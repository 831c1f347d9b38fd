"""Track two: stock and orders in Postgres, from the code that loses updates to the code that does not."""

from inventory.strategies import Strategy
from lab.ladder.stock.compute_and_overwrite import ComputeAndOverwrite
from lab.ladder.stock.subtract_in_sql import SubtractInSql

RUNGS: dict[str, Strategy] = {rung.name: rung for rung in (ComputeAndOverwrite(), SubtractInSql())}
