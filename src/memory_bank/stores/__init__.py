"""Where records and insights rest: SQL with a FAISS index beside it, and the plain reference in memory."""
