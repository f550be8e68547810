"""Work on many rooms, in this process or on Spark, and the site's folders of archives and exports."""
