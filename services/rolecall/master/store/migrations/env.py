"""Alembic's environment. It runs in the transaction that `Database.migrate` opened."""

from alembic import context

from rolecall.master.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
context.run_migrations()
