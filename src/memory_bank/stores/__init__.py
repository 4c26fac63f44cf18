"""Where records and insights rest: SQLite with a FAISS index beside it, PostgreSQL with pgvector, plain memory."""
