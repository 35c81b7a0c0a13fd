"""Tables of rows with categorical and numeric columns and a label: CSV, TSV or Parquet files, or generated.

`params`: the parameters. `files`, `rows`: readers. `fit`: column statistics of the training rows. `columns`: encodes
rows with them. `encoded`: encoded rows on the node's disk. `shuffle`: shuffle buffer for data too large for the disk.
`synthetic`: generates random rows.
`encoding`: encodes single rows, for exported models. No file here imports torch.
"""
