"""Jobs: their rows, queue, runs, progress and pages."""
