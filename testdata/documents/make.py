"""Writes the files of this folder: the same five documents as pyarrow, gzip and zstd write them.

Needs pyarrow and the programs gzip and zstd: python make.py
"""

import csv
import json
import pathlib
import subprocess

import pyarrow as pa
import pyarrow.parquet as pq

here = pathlib.Path(__file__).parent
texts = ["one", 'two, "quoted"', "three\nlines", "été", "five " * 40]
rows = [{"id": i, "body": text} for i, text in enumerate(texts)]

lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
for tool, ending in [(["gzip", "-n", "-9", "-c"], "gz"), (["zstd", "-q", "-c"], "zst")]:
    # Two members or frames one after the other, as parallel compressors write them.
    parts = [subprocess.run(tool, input="".join(part).encode(), capture_output=True, check=True).stdout
             for part in (lines[:2], lines[2:])]
    (here / f"lines.jsonl.{ending}").write_bytes(b"".join(parts))

for name, delimiter in [("table.csv", ","), ("table.tsv", "\t")]:
    with open(here / name, "w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "body"], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)

table = pa.table({"id": pa.array(range(len(texts))), "body": pa.array(texts)})
for codec in ["snappy", "zstd", "gzip", "lz4", "none"]:
    pq.write_table(table, here / f"{codec}.parquet", compression=codec, row_group_size=2)
required = pa.schema([pa.field("body", pa.string(), nullable=False)])
pq.write_table(pa.table({"body": texts}, schema=required), here / "required.parquet", use_dictionary=False,
               data_page_version="2.0")
pq.write_table(pa.table({"body": ["one", None]}), here / "null.parquet")
