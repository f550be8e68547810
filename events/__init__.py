"""Room events: formats, graph, storage, reading."""
