"""Events and the rows of rooms as DataFrames of Spark: read from sources, and computed by the rules of rooms."""
