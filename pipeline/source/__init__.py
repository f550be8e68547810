"""``format("replsite")``: streams as a data source of Spark, read and written."""
