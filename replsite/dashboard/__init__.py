"""The live page of the admin: its figures, their HTML, the updates over a WebSocket, and the actions of operators."""
