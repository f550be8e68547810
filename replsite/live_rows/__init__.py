"""What an operator sees: the rows of each table, the query that fills them, the rules that judge them, and their columns."""
