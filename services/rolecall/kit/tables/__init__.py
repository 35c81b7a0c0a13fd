"""Tables of rows with categorical and numeric columns and a label: CSV, TSV or Parquet files, or generated.

`params`: the parameters. `columns`: columns fitted to the training rows. `encoded`: encoded rows on the node's disk.
`synthetic`: generates random rows. `batches`: batches of rows, with a shuffle buffer for data too large for the disk.
`encoding`: encodes single rows, for exported models. `files`, `opening`: find the input files. No file here imports
torch.

Files are read with pyarrow, which only these import: `rows`, `file_errors`: readers. `fit`: column statistics of the
training rows. `records`: encodes rows with them. `source`: all of it, for a job's files.
"""
