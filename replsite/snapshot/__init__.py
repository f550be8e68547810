"""One consistent look at the whole site, taken for every surface."""
