"""Alembic's steps from an empty database to `schema.metadata`, applied when the master starts."""
