"""The live page of the admin: its figures, their HTML, the answers to open pages, and the actions of operators."""
