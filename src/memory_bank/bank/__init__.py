"""Records and insights in a database: SQLite with a FAISS index, or PostgreSQL with pgvector."""
