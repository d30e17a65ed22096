"""Merges shards by the query that docs/fleet.md gives for DuckDB, and writes all rows, sorted, as text."""
import re
import sys

import duckdb

document, shards, output = sys.argv[1:]
queries = re.findall(r"```sql\n(.*?)```", open(document, encoding="utf-8").read(), re.S)
query = next(q for q in queries if "EXCLUDE" in q).rstrip().rstrip(";")
query = query.replace("shards/*.parquet", shards.replace("'", "''") + "/*.parquet")
rows = duckdb.sql(f"SELECT * FROM ({query})")
columns = rows.columns
with open(output, "w", encoding="utf-8") as out:
    lines = []
    for row in rows.fetchall():
        named = dict(zip(columns, row))
        lines.append("|".join("" if named[c] is None else str(named[c]) for c in sorted(columns)))
    for line in sorted(lines):
        out.write(line + "\n")
