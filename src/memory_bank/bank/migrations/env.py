"""What alembic runs to migrate a connection that memory_bank opened."""

from alembic import context

from memory_bank.bank.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
