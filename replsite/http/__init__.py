"""HTTP around the pages: proxies, deadlines, places for requests, hosts and origins."""
