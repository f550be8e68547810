"""The handling of HTTP requests around the pages: proxies, deadlines, limits, hosts, origins and sessions."""
