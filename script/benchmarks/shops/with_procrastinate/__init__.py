"""The shop with procrastinate, over its Django integration."""
