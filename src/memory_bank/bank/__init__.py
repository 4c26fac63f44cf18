"""Where records and insights rest: SQLite beside a FAISS index, PostgreSQL with pgvector, plain memory."""
