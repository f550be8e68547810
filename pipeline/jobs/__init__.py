"""Jobs: rows, queue, runs, progress and pages."""
