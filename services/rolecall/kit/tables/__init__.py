"""Tables of rows with categorical and numeric columns and a label: CSV, TSV or Parquet files.

`params` says what is read, `files` and `rows` read it, `fit` learns what the columns' values mean, `columns` encodes
rows with that, `cache` keeps them on the node's disk and `stream` mixes what is too large for it. `encoding` encodes
single rows the same way, for exported models. No file here imports torch.
"""
