"""The live page of the admin: what it shows, how changes reach the browser, who may look."""
